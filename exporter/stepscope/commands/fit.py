"""`stepscope fit`: the step law from a file of measured loads, and how well it predicts others."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.core.crossval import cross_validate
from stepscope.core.fit import ROOF, Fit, fit, relative_error
from stepscope.core.law_terms import KV, TERMS, WEIGHTS
from stepscope.core.score import score
from stepscope.errors import ConfigError, FactError
from stepscope.points import Row, doubts, group, knows_bytes, machine_of, measured, point_of, prior_of, read_rows

HELP = "Fit the step law to measured loads and judge it on others."

# What the two prices per byte are called in the report: their inverse.
BANDWIDTHS = {TERMS[WEIGHTS]: "effective_bandwidth_bytes_per_second", TERMS[KV]: "kv_bandwidth_bytes_per_second"}


# The price of a token is known as well as the bandwidth it is read with; the share as well as the FLOP/s.
PRICES_ALIKE = {"kv_cost_seconds_per_token": BANDWIDTHS[TERMS[KV]], "decode_efficiency": ROOF}


@dataclass(frozen=True, slots=True)
class Judged:
    """One series: its fit and the relative errors on points, hold-out and, where asked for, unseen folds."""

    fitted: Fit
    own: list[float]
    holdout: list[float]
    crossed: list[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, how to split them, and the form of the report."""
    parser.add_argument("--points", metavar="FILE", required=True, help=(
        "rows with sequences, tokens_in_flight, prefill_tokens_per_step, itl_seconds: JSON lines, CSV, or what bench "
        "--json prints; facts of model and GPU are used where rows have them"))  # fmt: skip
    parser.add_argument("--holdout", metavar="FILE", help="rows of the same form to judge the fit on")
    parser.add_argument("--by", metavar="COLUMN", help="fit the rows of each value of this column on their own")
    parser.add_argument(
        "--cross-validate", metavar="K", type=int, help="also judge each K-th part by a fit of the rest"
    )
    parser.add_argument("--json", action="store_true", help="report as JSON")


def run(args: argparse.Namespace) -> int:
    """0 if everything was judged, 1 if hold-out rows belong to no fitted series."""
    if args.cross_validate is not None and args.cross_validate < 2:
        raise ConfigError(f"--cross-validate is {args.cross_validate}: must be at least 2")
    groups = group(_read(args.points), args.by)
    holdout = group(_read(args.holdout), args.by) if args.holdout else {}
    judged = {name: _judge(rows, holdout.get(name, []), args.cross_validate) for name, rows in groups.items()}
    for doubt in doubts(groups, args.by):
        print(f"stepscope: {doubt}", file=sys.stderr)
    report = _report(judged, with_holdout=bool(args.holdout), crossed=args.cross_validate is not None)
    strangers = [name for name in holdout if name not in groups]
    if strangers:
        report["unjudged"] = sum(len(holdout[name]) for name in strangers)
        print(
            f"stepscope: {report['unjudged']} rows of {args.holdout} were not judged: "
            f"{args.points} has no {args.by} {strangers[0]!r}",
            file=sys.stderr,
        )
    if args.json:
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        print("\n".join(_text(report)))
    return 1 if strangers else 0


def _read(path: str) -> list[Row]:
    rows, note = measured(read_rows(Path(path)))
    if note is not None:
        print(f"stepscope: {note}", file=sys.stderr)
    return rows


def _judge(rows: Sequence[Row], holdout: Sequence[Row], count: int | None) -> Judged:
    in_bytes = knows_bytes(rows)
    points = [point_of(row, in_bytes) for row in rows]
    machine = machine_of(rows)
    prior, compute = prior_of(machine), machine.compute if machine is not None else None
    try:
        fitted = fit(points, prior, compute=compute)
        crossed = cross_validate(points, count, prior, compute=compute) if count is not None else []
    except ValueError as error:
        raise FactError(f"{rows[0].where}: {error}") from error
    return Judged(
        fitted=fitted,
        own=[relative_error(fitted.law, point) for point in points],
        holdout=[relative_error(fitted.law, point_of(row, in_bytes)) for row in holdout],
        crossed=crossed,
    )


def _report(judged: dict[str, Judged], *, with_holdout: bool, crossed: bool) -> dict[str, Any]:
    series = {}
    for name, one in judged.items():
        series[name] = {
            "parameters": _parameters(one.fitted),
            "identifiable": {BANDWIDTHS.get(term, term): known for term, known in one.fitted.identifiable.items()},
            "range": asdict(one.fitted.valid_range),
            "prior_strength": one.fitted.strength,
            "fit": _score(one.own),
            "holdout": _score(one.holdout),
        }
        if crossed:
            series[name]["cross_validation"] = _score(one.crossed)
    report: dict[str, Any] = {"series": series, "fit": _score([e for one in judged.values() for e in one.own])}
    report["holdout"] = _score([e for one in judged.values() for e in one.holdout]) if with_holdout else None
    if crossed:
        report["cross_validation"] = _score([e for one in judged.values() for e in one.crossed])
    return report


def _score(errors: Sequence[float]) -> dict[str, Any] | None:
    return asdict(score(errors)) if errors else None


def _parameters(fitted: Fit) -> dict[str, float | None]:
    """Parameters by the names of the step law (docs/physics.md); what is not known or not limited is None."""
    law = fitted.law
    in_bytes = law.weights.always_bytes > 0.0
    found: dict[str, float | None] = {}
    for term, price in zip(TERMS, fitted.prices, strict=True):
        if term in BANDWIDTHS:
            found[BANDWIDTHS[term]] = 1.0 / price if in_bytes and price > 0.0 else None
        else:
            found[term] = price
    per_token = law.kv_bytes_per_token
    found["kv_cost_seconds_per_token"] = None if per_token is None else fitted.prices[KV] * per_token
    found[ROOF], found["decode_efficiency"] = law.compute_flops_per_second, fitted.decode_efficiency
    return {name: value if value is None or math.isfinite(value) else None for name, value in found.items()}


def _text(report: dict[str, Any]) -> list[str]:
    lines = []
    for name, one in report["series"].items():
        lines.append(name)
        for key, value in one["parameters"].items():
            if not value:
                continue
            known = one["identifiable"].get(PRICES_ALIKE.get(key, key), True)
            note = "" if known else "  (not fixed by these points: mostly prior)"
            lines.append(f"  {key:<42} {value:.4g}{note}")
        largest = {key[4:]: value for key, value in one["range"].items() if key.startswith("max_")}
        lines.append("  seen up to " + ", ".join(f"{key} {value:g}" for key, value in largest.items()))
        lines += _score_lines(one, "  ")
    if len(report["series"]) > 1:
        lines += ["all series", *_score_lines(report, "  ")]
    return lines


def _score_lines(scores: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for key, title in (("fit", "fitted"), ("cross_validation", "cross-validated"), ("holdout", "hold-out")):
        found = scores.get(key)
        if found:
            lines.append(
                f"{indent}{title + ':':<17} {found['n']} points, median error {found['median_abs_error']:.1%}, "
                f"90th percentile {found['p90_abs_error']:.1%}, within 6 %: {found['share_within_6pct']:.0%}, "
                f"within 15 %: {found['share_within_15pct']:.0%}, bias {found['bias']:+.1%}"
            )
    return lines
