"""`stepscope check`: what an operator runs first, inside the pod."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
import time
from collections.abc import Iterator
from typing import Any

from stepscope import __version__, config, engines
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.observer import Memory, Policy, observe
from stepscope.core.sample import Reading
from stepscope.core.snapshot import EngineView, Snapshot
from stepscope.errors import NotMetricsError, ScrapeError
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.pages import finite, snapshot_json
from stepscope.runtime.sentences import milliseconds, percent, sentence, tokens
from stepscope.runtime.sidecar import first_snapshot, scraper_of

HELP = "Scrape the engine twice and report what was found, assumed and missing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say where the engine is and what is known of it."""
    config.add_arguments(parser, "check")
    parser.add_argument("--json", action="store_true", help="report as JSON")


def run(args: argparse.Namespace) -> int:
    """0 if the engine was read and a step can be predicted, else 1."""
    settings = config.load("check", args, os.environ)
    report = _examine(settings)
    if args.json:
        print(json.dumps(finite(report), indent=1, allow_nan=False))
    else:
        print("\n".join(_text(report)))
    return 0 if report["ok"] else 1


def _examine(settings: Settings) -> dict[str, Any]:
    """Two scrapes one interval apart, through the same core as the sidecar. Raises ConfigError or FactError."""
    scraper = scraper_of(settings)
    facts = FactsKeeper(settings, scraper.client, os.environ)
    # One pair has to do: no warm-up, and a window that holds it.
    interval = settings[table.SAMPLE_INTERVAL]
    policy = Policy(
        interval_seconds=interval,
        window_seconds=2.0 * interval,
        warm_up_seconds=0.0,
        objective_tokens_per_second=settings[table.OBJECTIVE_TOKENS_PER_SECOND],
        headroom=settings[table.OBJECTIVE_HEADROOM],
    )
    memories: dict[str, Memory] = {}
    views: tuple[EngineView, ...] = ()
    reading: Reading | None = None
    error = None
    page_bytes = 0
    began = time.monotonic()
    try:
        for turn in range(2):
            if turn:
                time.sleep(max(0.0, began + interval - time.monotonic()))
            page = scraper.fetch(None)
            page_bytes = page.content_bytes
            try:
                reading = engines.read(page.text, page.at_seconds)
            except NotMetricsError as bad:
                raise ScrapeError("not_metrics", str(bad)) from None
            if reading is None:
                raise ScrapeError("no_engine_metrics", engines.why_none(page.text))
            memories, views = observe(memories, reading, facts.for_reading(reading), policy)
    except ScrapeError as failed:
        error = f"{failed.outcome}: {failed}"
    finally:
        scraper.close()
    snapshot = Snapshot(
        version=__version__,
        revision=first_snapshot().revision,
        python_version=first_snapshot().python_version,
        engine_up=error is None,
        engine_ever_up=reading is not None,
        last_error=error,
        engines=views,
        assumed=facts.assumed,
        engine_version=facts.engine_version,
        notes=reading.notes if reading is not None else (),
    )
    predicted = bool(views) and all(view.predicted is not None for view in views)
    report = snapshot_json(snapshot, time.monotonic())
    for key in ("config_ok", "config_errors", "engine_scrapes", "scrape_duration_seconds", "last_sample_unix_seconds"):
        report.pop(key)
    return {
        "ok": error is None and predicted,
        "engine_url": settings[table.ENGINE_URL],
        "objective_ttft_seconds": settings[table.OBJECTIVE_TTFT_SECONDS],
        "page_bytes": page_bytes,
        "names": sorted(reading.names) if reading is not None else [],
        "sentences": [sentence(view) for view in views],
        **report,
    }


def _text(report: dict[str, Any]) -> Iterator[str]:
    """The report for people: found, assumed, missing."""
    yield f"stepscope {report['version']} checks {report['engine_url']}"
    if report["last_error"]:
        yield f"  engine      NOT READ: {report['last_error']}"
    elif report["engines"]:
        version = report["engine_version"] or "(version unknown)"
        yield f"  engine      vLLM {version}, page of {report['page_bytes']} bytes"
    for note in report["notes"]:
        yield f"  note        {note}"
    for view, said in zip(report["engines"], report["sentences"], strict=True):
        yield from _engine(view, said, report["objective_ttft_seconds"])
    yield from _assumed(report["assumed"])
    for line in report["assumed"]["assumptions"]:
        yield f"  assumed     {line}"
    for line in report["assumed"]["missing"]:
        yield f"  MISSING     {line}"
    if not report["last_error"] and not report["ok"] and not report["assumed"]["missing"]:
        yield "  MISSING     KV capacity: give --kv.capacity-tokens"
    if report["names"]:
        names = ", ".join(name for name in report["names"] if not name.endswith(("_bucket", "_count")))
        yield from textwrap.wrap(names, 110, initial_indent="  series read ", subsequent_indent=" " * 14)
    yield "a step can be predicted" if report["ok"] else "NO step can be predicted"


def _engine(view: dict[str, Any], said: str, ttft_objective_seconds: float | None) -> Iterator[str]:
    capacity = "UNKNOWN" if view["capacity_tokens"] is None else f"{tokens(view['capacity_tokens'])} tokens"
    source = {"label": "the engine's own figure", "blocks": "blocks x block size", "override": "given"}.get(
        view["capacity_source"] or "", "-"
    )
    yield f"  engine {view['engine']:<4} {view['model_name'] or '(no model name)'}: {view['state']}. {said}".rstrip()
    yield f"  KV capacity {capacity} ({source}), in use {tokens(view['tokens_in_flight'])}"
    requests = [view[f"requests_{phase}"] for phase in ("decoding", "prefilling", "waiting")]
    words = [f"{'unknown' if n is None else format(n, '.0f')} {w}" for n, w in
             zip(requests, ("decoding", "in prefill", "waiting"), strict=True)]  # fmt: skip
    yield f"  requests    {', '.join(words)}"
    predicted = view["predicted"]
    if predicted is not None:
        yield (
            f"  decode step predicted {milliseconds(view['predicted_step_seconds'])}"
            f" (low {milliseconds(predicted['decode_low_seconds'])},"
            f" high {milliseconds(predicted['decode_high_seconds'])})"
        )
    if view["itl_mean_seconds"] is None:
        yield "  ITL         not measured: nothing was generated between the two scrapes"
    else:
        yield (
            f"  ITL         measured {milliseconds(view['itl_mean_seconds'])},"
            f" predicted {milliseconds(view['predicted_itl_seconds'])}, drift {percent(view['drift_ratio'])}"
        )
    if view["ttft_mean_seconds"] is not None and ttft_objective_seconds is not None:
        measured = milliseconds(view["ttft_mean_seconds"])
        yield f"  TTFT        measured {measured}, promised {milliseconds(ttft_objective_seconds)}"
    if view["speed_budget_tokens"] is not None:
        yield (
            f"  budget      {tokens(view['speed_budget_tokens'])} tokens at the promised speed,"
            f" {tokens(view['memory_budget_tokens'])} in memory; {tokens(view['token_headroom_tokens'])} to go"
        )


def _assumed(assumed: dict[str, Any]) -> Iterator[str]:
    model, hardware, law = assumed["model"], assumed["hardware"], assumed["law"]
    if model:
        per_token = model["kv_bytes_per_token"] or "by block"
        yield f"  model       {model['model']}: {model['kind']}, {model['attention']}; from {model['source']}"
        yield (
            f"              {_gigabytes(model['weight_bytes'])} of weights,"
            f" {_gigabytes(model['step_weight_bytes'])} read in a step,"
            f" {per_token} B of KV per token ({model['kv_dtype']})"
        )
    else:
        yield "  model       UNKNOWN"
    if hardware:
        yield (
            f"  hardware    {hardware['count']} x {hardware['gpu'] or 'GPU'},"
            f" {hardware['peak_bandwidth_bytes_per_second'] or '?'} B/s in all; from {hardware['source']}"
        )
    else:
        yield "  hardware    UNKNOWN"
    if law:
        yield (
            f"  step law    from {law['source']}: {law['effective_bandwidth_bytes_per_second']:.4g} B/s effective,"
            f" overhead {milliseconds(law['step_overhead_seconds'])}"
        )
    if assumed["calibration_mismatch"]:
        yield "  WARNING     the calibration was made for something else (see below)"


def _gigabytes(text: str) -> str:
    """Bytes for reading."""
    return f"{float(text) / 1e9:,.2f} GB" if text else "unknown"
