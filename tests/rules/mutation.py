"""Break the rules on purpose, one thing at a time, and see whether the cases notice.

`python tests/rules/mutation.py` tries every mutant of every rule and prints a table; status 1 if one survives.
Of each expression: every comparison turned round, every series, label value and set operation spoilt; of each alert its
`for` and `keep_firing_for` dropped. Recording rules also get another aggregation.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rules import promtool
from rules.cases import CASES

RECORDING_TESTS = Path(__file__).parent / "recording.test.yaml"
WORKERS = 2
_FLIPPED = {">": "<", "<": ">", ">=": "<", "<=": ">", "==": "!="}
_COMPARISON = re.compile(r"(?<=[\s)])(>=|<=|==|>|<)(?=[\s-])")
_SERIES = re.compile(r"\b(?:stepscope|kube)_\w+")
_MATCHER = re.compile(r'(?<=[=~]")[^"]+(?=")')
_SET_OPERATION = re.compile(r"\b(?:and|unless|or)\b")
_AGGREGATION = re.compile(r"\b(?:sum|min|max|count|bottomk)\b(?= (?:by|without))")
_OTHER_AGGREGATION = {"sum": "avg", "min": "max", "max": "sum", "count": "sum", "bottomk": "topk"}
_OTHER_SET = {"and": "or", "unless": "and", "or": "and"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed rule."""

    rule: Mapping[str, Any]
    kind: str
    what: str  # the changed spot, for people
    name: str  # of the rule


def mutants(rule: Mapping[str, Any]) -> Iterator[Mutant]:
    """Every mutant of an alerting or recording rule."""
    name, expr = str(rule.get("alert", rule.get("record"))), str(rule["expr"])

    def at_each(kind: str, pattern: re.Pattern[str], change: Callable[[str], str]) -> Iterator[Mutant]:
        for number, match in enumerate(pattern.finditer(expr), 1):
            changed = expr[: match.start()] + change(match.group()) + expr[match.end() :]
            yield Mutant({**rule, "expr": changed}, kind, f"{match.group()} (number {number})", name)

    yield from at_each("comparison flipped", _COMPARISON, _FLIPPED.__getitem__)
    yield from at_each("series misspelt", _SERIES, lambda found: found + "x")
    yield from at_each("label value misspelt", _MATCHER, lambda found: "x" if found.startswith(".") else found + "x")
    yield from at_each("set operation swapped", _SET_OPERATION, _OTHER_SET.__getitem__)
    if "record" in rule:
        yield from at_each("aggregation swapped", _AGGREGATION, _OTHER_AGGREGATION.__getitem__)
    for key in ("for", "keep_firing_for"):
        if key in rule:
            yield Mutant({k: v for k, v in rule.items() if k != key}, f"{key} dropped", str(rule[key]), name)


@cache
def rules() -> list[dict[str, Any]]:
    """All shipped rules."""
    found = []
    for name in ("alerts.yaml", "alerts-absent.yaml", "recording.yaml"):
        for group in yaml.safe_load((promtool.RULES / name).read_text("utf-8"))["groups"]:
            found += group["rules"]
    return found


@cache
def _tests(name: str, key: str) -> str:
    """The cases of one entry of CASES as promtool tests of one alert, without the rule file that they are about."""
    names = next(set(_SERIES.findall(str(rule["expr"]))) for rule in rules() if rule.get("alert") == name)
    groups = []
    for case in CASES[key]:
        one = promtool.rendered(case, only=name)
        one["input_series"] = [s for s in one["input_series"] if s["series"].split("{")[0] in names]
        groups.append(one)
    return promtool.text(groups)


@cache
def _recording_tests(name: str) -> str:
    """What is expected of one recording rule."""
    content = yaml.safe_load(RECORDING_TESTS.read_text("utf-8"))
    del content["rule_files"]
    for one in content["tests"]:
        one["promql_expr_test"] = [t for t in one["promql_expr_test"] if name in t["expr"]]
    return str(yaml.safe_dump(content, sort_keys=False))


def survives(promtool_path: str, mutant: Mutant, folder: Path) -> bool:
    """True if no case notices."""
    rule_file, test_file = folder / "rule.yaml", folder / "mutant.test.yaml"
    group = {"name": "mutant", "rules": [dict(mutant.rule)]}
    rule_file.write_text(yaml.safe_dump({"groups": [group]}, sort_keys=False), "utf-8")
    if "record" in mutant.rule:
        texts: Iterable[str] = (_recording_tests(mutant.name),)
    else:
        texts = (_tests(mutant.name, key) for key in (mutant.name, "quiet"))  # most die of the first
    for text in texts:
        test_file.write_text(f"rule_files: [{rule_file}]\n{text}", "utf-8")
        if not promtool.run(promtool_path, test_file)[0]:
            return False
    return True


def survivors(promtool_path: str, candidates: list[Mutant]) -> list[Mutant]:
    """Those that no case notices."""

    def tried(mutant: Mutant) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            return survives(promtool_path, mutant, Path(folder))

    with ThreadPoolExecutor(WORKERS) as pool:
        return [m for m, alive in zip(candidates, pool.map(tried, candidates), strict=True) if alive]


def main() -> int:
    """Try all, or those of the rules named as arguments; print a table."""
    path = shutil.which("promtool")
    if path is None:
        sys.exit("promtool is not installed")
    named = sys.argv[1:]
    candidates = [m for r in rules() for m in mutants(r) if not named or m.name in named]
    alive = survivors(path, candidates)
    kinds = sorted({m.kind for m in candidates})
    table, lost = Counter((m.name, m.kind) for m in candidates), Counter((m.name, m.kind) for m in alive)
    print("| rule | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for name in dict.fromkeys(m.name for m in candidates):
        cells = [f"{table[name, k] - lost[name, k]}/{table[name, k]}" if table[name, k] else "-" for k in kinds]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"\n{len(candidates) - len(alive)} of {len(candidates)} mutants were caught.")
    for mutant in alive:
        print(f"survived: {mutant.name}: {mutant.kind}: {mutant.what}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
