"""The document of a plan as lines for a terminal or a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.core.plan_tables import tables


def text(report: Mapping[str, Any], *, markdown: bool) -> Iterator[str]:
    """Line by line. Missing figures are shown as "-", and said."""
    law, demand = report["law"], report["demand"]
    bullet = "* " if markdown else "  "
    yield ("# " if markdown else "") + f"plan for {report['model']} on {report['gpu_count']} x {report['gpu'] or 'GPU'}"
    if markdown:
        yield ""
    yield bullet + f"{report['weight_bytes']:.4g} B of weights, {report['kv_bytes_per_token']:,.0f} B of KV per token"
    yield bullet + (
        f"step law from {law['source']}: {law['effective_bandwidth_bytes_per_second']:.4g} B/s, overhead "
        f"{law['step_overhead_seconds'] * 1e3:.2f} ms"
    )
    promised = demand["objective_tokens_per_second"]
    target = "no speed promised" if promised is None else f"{promised:g} tokens/s promised"
    if report["overhead_high_bytes"] is not None:
        yield bullet + (
            f"{report['overhead_bytes']:.3g} B per GPU beside weights and KV, {report['overhead_high_bytes']:.2g} "
            "for the low end; --runtime-overhead-bytes says better"
        )
    yield bullet + f"{demand['requests']:g} request(s) of {demand['context_tokens']:,.0f} tokens on average; {target}"
    if report["prefill_seconds"] is not None:
        whole, linear = report["prefill_seconds"], report["prefill_seconds_linear"]
        attention = f", {linear:.2f} s of it without attention" if whole > linear else ""
        low, high = report["prefill_low_seconds"], report["prefill_high_seconds"]
        yield bullet + (
            f"a prompt of {demand['prompt_tokens']:,.0f} tokens adds {whole:.2f} s ({low:.2f} to {high:.2f}) to its "
            f"{_steps(demand)}{attention}; TTFT below has the steps in it"
        )
    if report["requests"] is not None:
        yield bullet + (
            f"{report['requests']:,} requests ({_count(report['requests_low'])} to {_count(report['requests_high'])}) "
            f"fit one replica; {report['binding']} binds"
        )
    yield from (bullet + line for line in _queue_lines(report))
    yield bullet + f"for this mix with a reserve of {demand['reserve']:.0%}: {_need(report)}"
    if report["gpus_doubt"]:
        yield bullet + f"doubtful: {report['gpus_doubt']}"
    for one in report["sizes"]:
        if one["why_not"] and len(report["sizes"]) > 1:
            yield bullet + f"{one['tensor_parallel']} GPU(s) per replica: {one['why_not']}"
        elif one["doubt"] and one["tensor_parallel"] != report["tensor_parallel"]:
            yield bullet + f"{one['tensor_parallel']} GPU(s) per replica, not recommended: {one['doubt']}"
    yield from (bullet + line for line in _cost_lines(report))
    for title, heads, rows in tables(report):
        yield ""
        yield f"## {title}" if markdown else title
        yield from _markdown(heads, rows) if markdown else _columns(heads, rows)
    for title, lines in (("plan and engine differ", report["checks"]), ("assumed", report["assumptions"])):
        if lines:
            yield ""
            yield f"## {title}" if markdown else title
            yield from (bullet + line for line in lines)


def _steps(demand: Mapping[str, Any]) -> str:
    steps = max(1, -int(-demand["prompt_tokens"] // demand["chunk_tokens"]))
    return "step" if steps == 1 else f"{steps:,} steps"


def _count(value: int | None) -> str:
    return "any number" if value is None else f"{value:,}"


def _need(report: Mapping[str, Any]) -> str:
    if report["gpus"] is None:
        return str(report["sizes"][-1]["why_not"])
    high = report["gpus_high"]
    return f"{report['gpus']} GPU(s) ({report['gpus_low']} to {'no number' if high is None else high})"


def _queue_lines(report: Mapping[str, Any]) -> Iterator[str]:
    queued = [row for row in report["concurrency"] if row["prompts_queue"]]
    if queued:
        yield (
            f"from {queued[0]['requests']} requests on, prompts queue: more than a chunk of "
            f"{report['demand']['chunk_tokens']:,.0f} tokens (--chunk-tokens) comes in each step; "
            f"{queued[0]['decoding_requests']:.1f} decode at once, the first token comes later than TTFT says"
        )
    if report["peaks_missing"]:
        yield f"no table of users a day: {report['peaks_missing']}"


def _cost_lines(report: Mapping[str, Any]) -> Iterator[str]:
    costs, unit = report["cost_per_million_tokens"], f" {report['currency']}".rstrip()
    if costs is None:
        return
    for words, key in (("at the objective", "at_objective"), ("at full load", "at_full_load")):
        if costs[key] is not None:
            ends = (costs[f"{key}_low"], costs[f"{key}_high"])
            low, high = ("no end" if end is None else f"{end:.2f}" for end in ends)
            yield f"cost per million tokens {words}: {costs[key]:.2f}{unit} ({low} to {high})"
    for rate, cost in costs["at_tokens_per_second"].items():
        yield f"cost per million tokens at {rate} tokens/s: {cost:.2f}{unit}"


def _columns(heads: Sequence[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for cells in (heads, *rows):
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _markdown(heads: Sequence[str], rows: list[list[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
