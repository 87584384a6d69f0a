"""Cases in sentences, and how promtool runs them.

By hand: `python tests/rules/promtool.py DIR` writes the cases of each alert as one promtool test file into DIR.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rules.sidecar import STALE, STEP_SECONDS, Series, Sidecar, Value, series_of

RULES = Path(__file__).resolve().parents[2] / "rules"
EVALUATION_SECONDS = 30
# Labels that tell one alert from another; the others follow from them.
_BY = "alertname, instance, model_name, engine, namespace, pod"


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert that is expected: on which target and engine. Engine None: the alert is about the whole target."""

    alert: str
    engine: str | None = "0"
    instance: str | None = "10.0.0.1:10094"
    model_name: str = "Qwen/Qwen3-8B"
    more: tuple[tuple[str, str], ...] = ()

    def labels(self) -> dict[str, str]:
        """What `count by` shows of it."""
        found = {"alertname": self.alert, **dict(self.more)}
        if self.instance is not None:
            found["instance"] = self.instance
        if self.engine is not None:
            found |= {"engine": self.engine, "model_name": self.model_name}
        return found


@dataclass(frozen=True, slots=True)
class Case:
    """One situation: what the sidecars publish, and exactly which alerts fire at which minute."""

    says: str
    sidecars: Sequence[Sidecar]
    fires: Mapping[float, Sequence[Firing]]  # minute -> all alerts that fire then, of whatever name
    others: Series = field(default_factory=dict)  # series that are not a sidecar's


def silence(first: int, end: int, per_minute: int = 1) -> dict[float, Sequence[Firing]]:
    """Nothing fires at any of these minutes (or parts of minutes), `end` excluded."""
    return {at / per_minute: () for at in range(first, end)}


def notation(values: Sequence[Value]) -> str:
    """Values in promtool's short form: `0+15x40` for runs, `_` for no sample."""
    parts: list[str] = []
    at = 0
    while at < len(values):
        first = values[at]
        if not isinstance(first, float) or math.isnan(first):
            parts.append("_" if first is None else STALE if first == STALE else "NaN")
            at += 1
            continue
        length, step = 1, 0.0
        following = values[at + 1] if at + 1 < len(values) else None
        if isinstance(following, float) and not math.isnan(following):
            step = following - first
            while at + length < len(values):
                value = values[at + length]
                if not isinstance(value, float) or not abs(value - first - step * length) < 1e-6:
                    break
                length += 1
        parts.append(_number(first) if length == 1 else f"{_number(first)}{_number(step, '+')}x{length - 1}")
        at += length
    return " ".join(parts)


def _number(value: float, sign: str = "") -> str:
    return format(value, f"{sign}.6f").rstrip("0").rstrip(".")


def rendered(case: Case, only: str | None = None) -> dict[str, Any]:
    """A promtool test group. `only`: the name of the one alert whose firing counts."""
    series: Series = dict(case.others)
    for sidecar in case.sidecars:
        series |= series_of(sidecar)
    selector = 'alertstate="firing"' + (f',alertname="{only}"' if only else "")
    tests = []
    for minute, firing in sorted(case.fires.items()):
        expected = [_sample(one.labels()) for one in firing if only in (None, one.alert)]
        expr = f"count by ({_BY}) (ALERTS{{{selector}}})"
        tests.append({"expr": expr, "eval_time": f"{round(minute * 60)}s", "exp_samples": expected})
    return {
        "name": case.says,
        "interval": f"{STEP_SECONDS}s",
        "input_series": [{"series": name, "values": notation(values)} for name, values in series.items()],
        "promql_expr_test": tests,
    }


def _sample(labels: Mapping[str, str]) -> dict[str, Any]:
    inner = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return {"labels": "{" + inner + "}", "value": 1}


def text(groups: Iterable[Mapping[str, Any]]) -> str:
    """A promtool test file, but for the rule files that it tests."""
    content = {"evaluation_interval": f"{EVALUATION_SECONDS}s", "tests": list(groups)}
    return str(yaml.safe_dump(content, sort_keys=False, width=1000))


def write(path: Path, groups: Iterable[Mapping[str, Any]], rule_files: Iterable[Path]) -> None:
    """A promtool test file."""
    listed = yaml.safe_dump({"rule_files": [str(file) for file in rule_files]})
    path.write_text(listed + text(groups), "utf-8")


def run(promtool: str, *files: Path) -> tuple[bool, str]:
    """Whether promtool accepts the test files, and what it printed."""
    done = subprocess.run(
        [promtool, "test", "rules", *map(str, files)], capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr


def main() -> int:
    """Write all cases for use without pytest."""
    from rules.cases import CASES

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for alert, cases in CASES.items():
        write(folder / f"{alert}.test.yaml", [rendered(c) for c in cases], [RULES / "alerts.yaml"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
