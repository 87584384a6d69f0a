"""How well the step law predicts public measurements: `make accuracy` writes docs/accuracy.md, charts and defaults."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy_aiconfigurator import Cached, read_cached
from accuracy_charts import error_by_batch, predicted_against_measured
from accuracy_data import ABSENT, DENSE, GROUPS, MOE, REPOSITORY, Series, load, shared_folder
from accuracy_methods import (
    Judged,
    Unseen,
    batch_only,
    crossed,
    datasheet,
    four_terms,
    from_five,
    kv_only,
    one_point,
    uncalibrated,
)
from accuracy_pool import TABLE, left_out, table, table_text
from accuracy_text import BESIDE_TEXT, DOCUMENT, FOREWORD, MISSES, MPT_TEXT, TERMS_TEXT, UNCALIBRATED_TEXT

from stepscope.core.defaults import Machine, Pooled, default_prior
from stepscope.core.fit import fit, relative_error
from stepscope.core.law_terms import Point
from stepscope.core.score import score

IMAGES = REPOSITORY / "docs" / "images"
CAP = 0.2  # an error counts as this at most in the table of terms, so that one wild point does not decide
PASSES = "wide_batch_seconds"
EXTRA_TERMS = {
    "kv_context_cost_seconds_per_byte_token": "context cost of the KV cache",
    "batch_growth_seconds": "log2(1 + n)",
    PASSES: "passes beyond 256 tokens",
    "prefill_growth_seconds_per_token": "growth of prefill, P^(4/3)",
    "prompt_cost_seconds": "cost per prompt",
    "prompt_growth_seconds": "log2(1 + 8 r) of prompts per step",
}
MPT_BATCH = 64  # the calibration point: the fullest, whose figure has the most digits


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted of median error and of the shares within 6 % and 15 %."""

    median: float
    close: float
    fair: float

    def text(self) -> str:
        """For a table."""
        return f"{self.median:.0%}, {self.close:.0%}, {self.fair:.0%}".replace("%", " %")


DENSE_CROSSED, MOE_CROSSED, SWEEP_CROSSED = Target(0.02, 0.9, 0.98), Target(0.03, 0.8, 0.95), Target(0.04, 0.7, 0.9)
DENSE_FIVE, MOE_FIVE = Target(0.03, 0.8, 0.95), Target(0.05, 0.55, 0.88)


def figures(judged: Sequence[Judged], target: Target | None = None) -> str:
    """Median error, shares within 6 and 15 %; a missed target is printed bold."""
    found = score([one.error for one in judged])
    digits = 0 if target is None else 1  # where a target is close, the rounding must not hide which side it is
    shown = [f"{100 * found.median_abs_error:.1f}", f"{100 * found.share_within_6pct:.{digits}f}"]
    shown.append(f"{100 * found.share_within_15pct:.{digits}f}")
    if target is not None:
        met = (
            found.median_abs_error <= target.median,
            found.share_within_6pct >= target.close,
            found.share_within_15pct >= target.fair,
        )
        shown = [text if good else f"**{text}**" for text, good in zip(shown, met, strict=True)]
    return " / ".join(shown)


def rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    parts = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(parts + ["| " + " | ".join(line) + " |" for line in lines])


def by_file(everything: Sequence[Series], judge: Callable[[Series], list[Judged]]) -> dict[str, list[Judged]]:
    """All judged points of each file."""
    found: dict[str, list[Judged]] = {file: [] for file in GROUPS}
    for series in everything:
        found[series.file] += judge(series)
    return found


def joined(judged: dict[str, list[Judged]], files: Sequence[str]) -> list[Judged]:
    """The points of several files."""
    return [one for file in files for one in judged[file]]


def once(judged: Sequence[Judged]) -> list[Judged]:
    """Each point with its first prediction only."""
    return list({(one.series.name, one.point): one for one in reversed(judged)}.values())


def target_of(file: str, five: bool) -> Target | None:
    """The target of a group."""
    if file == "dynamo_decode":
        return None if five else SWEEP_CROSSED
    if file in MOE:
        return MOE_FIVE if five else MOE_CROSSED
    return DENSE_FIVE if five else DENSE_CROSSED


def beside(cached: Cached, ours: dict[str, list[Judged]]) -> str:
    """Ours, uncalibrated, beside aiconfigurator on the points that both predict; bold where ours is not as good."""
    lines = []
    modern = [file for file in GROUPS if file != "fastertransformer"]  # an engine it does not model
    groups = [((file,), GROUPS[file]) for file in modern] + [(DENSE, "all dense"), (MOE, "all MoE")]
    for files, name in groups:
        everything = joined(ours, files)
        theirs, mine = cached.judge(everything)
        if not theirs:
            continue
        found = score([one.error for one in theirs])
        bar = Target(found.median_abs_error, found.share_within_6pct, found.share_within_15pct)
        lines.append([name, f"{len(theirs)} of {len(everything)}", figures(theirs, bar), figures(mine, bar)])
    return rows(("group", "points both cover", f"aiconfigurator {cached.version}", "ours, uncalibrated"), lines)


def worth_of_terms(everything: Sequence[Series], unseen: Unseen) -> str:
    """Cross-validated error with each extra term left out."""

    def capped(*without: str, roof: bool = True) -> list[float]:
        found = by_file(everything, lambda one: crossed(one, unseen, without, turns=1, roof=roof))
        return [sum(min(abs(o.error), CAP) for o in judged) / len(judged) for judged in found.values()]

    found = {"all terms": capped(), "without compute roof": capped(roof=False)}
    found["without compute roof and passes"] = capped(PASSES, roof=False)
    found |= {f"without {name}": capped(term) for term, name in EXTRA_TERMS.items()}
    lines = [[name, *(f"{100 * value:.2f}" for value in values)] for name, values in found.items()]
    return rows(("mean error, %, each capped at 20 %", *GROUPS.values()), lines)


def mpt(shared: Path, pooled: Pooled) -> str:
    """MPT-7B on one A100-40GB from one point and the default prefill term."""
    # 32 layers, hidden size 4096, multi-head attention, 16 bits: 6.649e9 parameters (its published configuration).
    machine = Machine("fastertransformer", "A100-40GB-SXM", 1, 1.555e12, 312e12, 6.649e9, layers=32)
    cells = [json.loads(line) for line in (shared / "data/measured/databricks.jsonl").read_text().splitlines()]
    points = {}
    for cell in cells:
        if cell["metric"] == "req_per_s" and cell["gpu"] == "A100-40GB-SXM" and cell["num_gpus"] == 1:
            batch, start, end = cell["batch_or_concurrency"], cell["input_len"], cell["output_len"]
            seconds = batch / cell["value"] / end
            points[batch] = Point(batch, batch * (start + end / 2), batch * start / end, seconds, 2 * 6.649e9, 524288.0)
    law = fit([points[MPT_BATCH]], default_prior(pooled, machine), compute=machine.compute).law
    lines = [
        [f"{n}", f"{1e3 * p.itl_seconds:.1f}", f"{100 * relative_error(law, p):+.1f} %"] for n, p in points.items()
    ]
    return rows(("batch", "measured, ms per step", "error"), lines)


def main() -> int:
    """Writes everything anew; nothing where the measurements are not on this machine."""
    shared = shared_folder()
    if shared is None:
        sys.stdout.write(ABSENT)
        return 0
    everything = load(shared)
    unseen, kinds = left_out(everything)
    defaults = table(everything, unseen, kinds)
    TABLE.write_text(table_text(defaults), encoding="utf-8")
    plain = {
        "data sheet x 0.6": by_file(everything, datasheet),
        "one-point bandwidth": by_file(everything, one_point),
        "batch only": by_file(everything, batch_only),
        "KV only": by_file(everything, kv_only),
        "four-term least squares": by_file(everything, four_terms),
    }
    ours_cold = by_file(everything, lambda one: uncalibrated(one, unseen))
    ours_five = by_file(everything, lambda one: from_five(one, unseen))
    ours = by_file(everything, lambda one: crossed(one, unseen))
    methods = {**plain, "ours, uncalibrated": ours_cold, "ours, 5 points": ours_five, "ours, cross-validated": ours}
    comparison = []
    for files, name in [((file,), title) for file, title in GROUPS.items()] + [(DENSE, "all dense"), (MOE, "all MoE")]:
        counts = len(joined(ours_cold, files))
        comparison.append([name, str(counts), *(figures(joined(judged, files)) for judged in methods.values())])
    targets = []
    for file, name in GROUPS.items():
        crossed_target, five_target = target_of(file, five=False), target_of(file, five=True)
        targets.append(
            [
                name,
                crossed_target.text() if crossed_target else "",
                figures(ours[file], crossed_target),
                five_target.text() if five_target else "",
                figures(ours_five[file], five_target),
            ]
        )
    cold_target = Target(0.06, 0.0, 0.85)
    cold = [[GROUPS[file], figures(ours_cold[file], cold_target)] for file in DENSE]
    cold.append(["all dense", figures(joined(ours_cold, DENSE), cold_target)])
    cold += [[GROUPS[file], figures(ours_cold[file])] for file in ("fastertransformer", *MOE)]
    document = [
        FOREWORD,
        rows(("group", "points", *methods), comparison),
        "\n![Predicted against measured](images/accuracy-predicted.svg)\n",
        "![Error by batch](images/accuracy-batch.svg)\n",
        "## Targets\n",
        rows(("group", "wanted, cross-validated", "reached", "wanted, 5 points", "reached"), targets) + "\n",
        MISSES,
        UNCALIBRATED_TEXT,
        rows(("group, series left out", "median % / within 6 % / within 15 %"), cold) + "\n",
        BESIDE_TEXT,
        beside(read_cached(), ours_cold) + "\n",
        MPT_TEXT,
        mpt(shared, defaults[("fastertransformer", "ampere", "dense")]) + "\n",
        TERMS_TEXT,
        worth_of_terms(everything, unseen) + "\n",
    ]
    DOCUMENT.write_text("\n".join(document), encoding="utf-8")
    IMAGES.mkdir(exist_ok=True)
    kinds = {"dense": DENSE, "MoE": MOE, "FasterTransformer": ["fastertransformer"], "decode-only": ["dynamo_decode"]}
    drawn = {name: once(joined(ours, files)) for name, files in kinds.items()}
    chart = predicted_against_measured("Predicted against measured, cross-validated", drawn)
    (IMAGES / "accuracy-predicted.svg").write_text(chart, encoding="utf-8")
    shown = ("data sheet x 0.6", "one-point bandwidth", "four-term least squares", "ours, 5 points")
    lines = {name: joined(methods[name], DENSE) for name in (*shown, "ours, cross-validated")}
    (IMAGES / "accuracy-batch.svg").write_text(error_by_batch("Dense models: error by batch", lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
