"""The report of a calibration: as a document, as text for people, and as points for `stepscope fit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from stepscope.commands._load import Opened
from stepscope.core.assume import Calibration
from stepscope.core.bench_report import facts_columns
from stepscope.core.calibrate import Bandwidths, Measured
from stepscope.core.fit import ROOF, Fit, relative_error
from stepscope.core.law_terms import KV, TERMS, WEIGHTS
from stepscope.core.step_model import predict
from stepscope.runtime.sentences import milliseconds

_BANDWIDTHS = {TERMS[WEIGHTS]: "effective_bandwidth_bytes_per_second", TERMS[KV]: "kv_bandwidth_bytes_per_second"}


def document(
    measured: Sequence[Measured],
    fitted: Fit,
    found: Bandwidths | None,
    calibration: Calibration,
    engine: Opened,
    path: str,
    seconds: float,
) -> dict[str, Any]:
    """Everything that was found, with plain JSON values."""
    model = engine.facts.model
    assumed = model.kv_read_bytes_per_token(engine.given.gpu_count) if model is not None else None
    return {
        "file": path,
        "seconds": seconds,
        "probes": [_probe(one, fitted) for one in measured],
        "parameters": {_name(term): getattr(calibration, _name(term)) for term in (*TERMS, ROOF)},
        "identifiable": {_name(term): known for term, known in fitted.identifiable.items()},
        "range": asdict(fitted.valid_range),
        "residuals": {
            "median_abs_error": calibration.residual_ratio,
            "repeat_spread": calibration.noise_ratio,
            "samples": calibration.samples,
        },
        "bandwidths": None
        if found is None
        else {
            "short_run_bytes_per_second": found.short,
            "long_run_bytes_per_second": found.long,
            "short_run_without_overhead_bytes_per_second": found.short_most,
            "disagreement": found.disagreement,
        },
        "kv_bytes_per_token": {"engine": engine.kv.bytes_per_token, "assumed": assumed},
        "provenance": {
            key: getattr(calibration, key)
            for key in ("model", "gpu", "gpu_count", "engine_version", "dtype", "kv_dtype", "date", "stepscope_version")
        },
        "assumptions": list(engine.assumptions),
    }


def point_rows(measured: Sequence[Measured], engine: Opened) -> list[dict[str, Any]]:
    """The measured loads as `stepscope fit --points` reads them."""
    rows = []
    for one in measured:
        columns = facts_columns(engine.facts, engine.given, one.point.sequences, None, engine.family)
        if one.point.kv_bytes_per_token is not None:
            columns["kv_bytes_per_token_per_gpu"] = one.point.kv_bytes_per_token / engine.given.gpu_count
        rows.append(
            {
                "load": str(one.probe),
                "sequences": one.point.sequences,
                "tokens_in_flight": one.point.tokens_in_flight,
                "prefill_tokens_per_step": one.point.prefill_tokens_per_step,
                "itl_seconds": one.point.itl_seconds,
                "client_itl_seconds": one.client_itl_seconds,
                "observations": one.observations,
                **columns,
            }
        )
    return rows


def text(report: dict[str, Any]) -> Iterator[str]:
    """The report for people."""
    yield f"  {'load':<34}{'tokens in flight':>17}{'prefill/step':>13}{'ITL':>11}{'client':>11}{'law':>11}{'error':>8}"
    for probe in report["probes"]:
        yield (
            f"  {probe['load']:<34}{probe['tokens_in_flight']:>17,.0f}{probe['prefill_tokens_per_step']:>13.1f}"
            f"{milliseconds(probe['itl_seconds']):>11}{milliseconds(probe['client_itl_seconds']):>11}"
            f"{milliseconds(probe['law_itl_seconds']):>11}{probe['law_error']:>+8.1%}"
        )
    for name, value in report["parameters"].items():
        if value:
            note = "" if report["identifiable"][name] else "  (not fixed by these loads: mostly assumed)"
            yield f"  {name:<40} {value:.4g}{note}"
    found = report["bandwidths"]
    if found is not None:
        most = found["short_run_without_overhead_bytes_per_second"]
        yield (
            f"  effective bandwidth: short run {found['short_run_bytes_per_second']:.4g} B/s"
            + ("" if most is None else f" ({most:.4g} without the assumed overhead)")
            + f", long run {found['long_run_bytes_per_second']:.4g} B/s: "
            + ("they agree" if not found["disagreement"] else f"{found['disagreement']:+.0%}")
        )
    kv = report["kv_bytes_per_token"]
    if kv["engine"] is not None and kv["assumed"] is not None:
        yield f"  KV bytes per token: engine's pool / capacity {kv['engine']:,.0f}, model {kv['assumed']:,.0f}"
    residuals = report["residuals"]
    again = residuals["repeat_spread"]
    yield f"  residual {residuals['median_abs_error']:.1%}" + (
        "" if again is None else f"; the same load measured twice differs by {again:.1%}"
    )
    for line in report["assumptions"]:
        yield f"  assumed     {line}"
    for line in report["advice"]:
        yield f"  CHECK       {line}"
    yield f"  written to {report['file']} after {report['seconds']:.0f} s"


def _name(term: str) -> str:
    """What the file calls a price: a price per byte is there as its inverse."""
    return _BANDWIDTHS.get(term, term)


def _probe(one: Measured, fitted: Fit) -> dict[str, Any]:
    step = predict(fitted.law, one.point.load)
    return {
        "load": str(one.probe),
        "sequences": one.point.sequences,
        "tokens_in_flight": one.point.tokens_in_flight,
        "client_tokens_in_flight": one.client_tokens,
        "prefill_tokens_per_step": one.point.prefill_tokens_per_step,
        "itl_seconds": one.point.itl_seconds,
        "client_itl_seconds": one.client_itl_seconds,
        "engine_itl_seconds": one.engine_itl_seconds,
        "observations": one.observations,
        "law_itl_seconds": step.itl_seconds if step is not None else None,
        "law_error": relative_error(fitted.law, one.point),
    }
