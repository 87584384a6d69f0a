"""`stepscope plan`: what fits, what binds, how fast, how many GPUs, at what cost; offline or beside an engine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope import config
from stepscope import settings as table
from stepscope.commands import _plan_engine, _plan_flags
from stepscope.commands._plan_inputs import Inputs, gather, inputs_for
from stepscope.core.collectives import powers_of_two
from stepscope.core.plan import Replica, row
from stepscope.core.plan_reality import Reality, checks, scaled
from stepscope.core.plan_report import POOLED_REDUCES, Money, Plan, Users, document, tables
from stepscope.core.plan_svg import draw
from stepscope.core.sizing import MOST_REQUESTS, Sizing, size
from stepscope.errors import ConfigError
from stepscope.runtime.facts import given_of
from stepscope.runtime.pages import finite

HELP = "Plan capacity: what fits, what binds, how fast, how many GPUs, at what cost."
# Llama-3.3-70B in fp8, vLLM, 1, 47 and 93 requests of 350 tokens (decode sweep of ai-dynamo 0.7.0); medians.
EFFICIENCY_UNDER_TENSOR_PARALLEL = (
    "an efficiency has no overhead per layer in it: a 70B model on 2, 4 and 8 H100s took 1.0, 1.4 and 1.9 times as "
    "long as at 0.6; without --bandwidth-efficiency the pooled law is used"
)
BEYOND_RANGE_FACTOR = 2.7  # docs/alert-quality.md: the same sweep
_ROWS_ALONE = 12  # powers of two tabulated where no concurrency is asked for: up to 2,048 requests


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shared settings on model, hardware, objective, calibration and engine, and the plan's own flags."""
    config.add_arguments(parser, "plan")
    _plan_flags.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """0. Raises ConfigError or FactError (exit 2), one line each, for inputs that are wrong or impossible."""
    flags = _plan_flags.read(args)
    settings = config.load("plan", args, os.environ)
    reality: Reality | None = None
    lines: list[str] = []
    law = None
    # Only the flag: a pod's environment may name the engine, and a plan must not then depend on it.
    if settings.source_of(table.ENGINE_URL) == "flag":
        seen = _plan_engine.look(settings)
        reality = seen.reality
        if seen.facts.model is None:
            raise ConfigError(f"plan: {'; '.join(seen.missing) or 'the engine names no model'}")
        inputs = inputs_for(seen.facts.model, given_of(settings), settings, flags)
        replica = inputs.replica(inputs.given.gpu_count)
        wanted = settings[table.MODEL_ID]
        lines = checks(replica, seen.facts.model.kv_dtype, inputs.demand, reality, wanted)
        if reality.usable_ratio is not None:
            law = scaled(replica.law, reality.usable_ratio)
        if inputs.given.capacity_override_tokens is None and reality.capacity_tokens is not None:
            given = dataclasses.replace(inputs.given, capacity_override_tokens=reality.capacity_tokens)
            inputs = dataclasses.replace(inputs, given=given)
        replica = inputs.replica(inputs.given.gpu_count, law)
    else:
        inputs = gather(settings, flags)
        replica = inputs.replica(inputs.given.gpu_count)
    report = _report(inputs, replica, is_offline=reality is None)
    report["engine"] = None if reality is None else dataclasses.asdict(reality)
    report["checks"] = lines
    if args.plot is not None:
        _write(Path(args.plot), draw(report))
    if args.json:
        print(json.dumps(finite(report), indent=1, allow_nan=False))
    else:
        print("\n".join(_text(report, markdown=args.markdown)))
    return 0


def _report(inputs: Inputs, replica: Replica, *, is_offline: bool) -> dict[str, Any]:
    demand, flags = inputs.demand, inputs.flags
    sizing = size(replica, demand)
    whole = max(1, round(demand.requests)) if flags["mix"] is not None else None
    asked = set(demand.concurrency) or set(_usual_rows(sizing, whole))
    if whole is not None:
        asked.add(whole)
    rows = [found for n in sorted(asked) if (found := row(replica, demand, n)) is not None]
    if not rows:
        raise ConfigError("plan: the step law cannot say how long a step takes: KV bytes per token are not known")
    price = flags["gpu-price-per-hour"]
    users = flags["daily-users"]
    plan = Plan(
        demand=demand,
        rows=tuple(rows),
        sizing=sizing,
        sizes=tuple(_sizes(inputs, sizing, is_offline=is_offline)),
        money=None if price is None else Money(price, flags["currency"], flags["tokens-per-second"] or ()),
        users=None
        if users is None
        else Users(users, flags["requests-per-user"], flags["peak-share"], flags["peak-duration"]),
    )
    gpu = inputs.given.gpu
    return {
        "model": inputs.model.name,
        "model_source": inputs.model.source,
        "weight_bytes": inputs.model.total_weight_bytes,
        "kv_bytes_per_token": replica.kv_bytes_per_token,
        "gpu": gpu.name if gpu is not None else None,
        "gpu_count": replica.gpu_count,
        **document(plan),
        "assumptions": [*inputs.assumptions, *_law_words(inputs, replica), *_range_words(plan)],
    }


def _usual_rows(sizing: Sizing, whole: int | None) -> Iterator[int]:
    """1, 2, 4 ... up to the whole mix, or to where memory ends."""
    memory = next((limit.requests for limit in sizing.limits if limit.name == "memory"), MOST_REQUESTS)
    yield from (1 << power for power in range(_ROWS_ALONE) if 1 << power <= max(whole or memory, 1))


def _sizes(inputs: Inputs, asked: Sizing, *, is_offline: bool) -> Iterator[Sizing]:
    """The replica that was asked about, and smaller tensor-parallel sizes where the law can be made for them."""
    count = asked.replica.gpu_count
    if is_offline and not inputs.calibrated:
        for other in powers_of_two(count):
            if other != count:
                yield size(inputs.replica(other), inputs.demand)
    yield asked


def _law_words(inputs: Inputs, replica: Replica) -> Iterator[str]:
    law = replica.law
    if law.source == "engine":
        yield "the decode step is scaled to what the engine takes now; prompts are not"
    else:
        yield from inputs.law_assumptions()
    if law.prefill_cost_seconds_per_token == 0.0:
        yield "the calibration has no prefill cost: prompts are taken to cost nothing"
    if replica.capacity_tokens is None and replica.memory_bytes is not None and not replica.overhead_bytes:
        yield "memory beside weights and KV is taken as 0: give --runtime-overhead-bytes"
    yield from _tensor_parallel_words(replica)


def _range_words(plan: Plan) -> Iterator[str]:
    """Where the plan goes beyond what the pooled law was fitted on."""
    slowest, context = plan.sizing.replica.law.slowest, plan.demand.mean_tokens
    if slowest is None:
        return
    most = max((found.requests for found in plan.rows), default=0)
    if most > slowest.max_sequences or context > slowest.max_context_tokens:
        yield (
            f"the pooled figures end at {slowest.max_sequences:.0f} requests and {slowest.max_context_tokens:,.0f} "
            "tokens of context each; beyond, "
            f"a public decode sweep took up to {BEYOND_RANGE_FACTOR} times as long"
        )


def _tensor_parallel_words(replica: Replica) -> Iterator[str]:
    if replica.gpu_count < 2:
        return
    if replica.reduce_seconds_per_sequence:
        yield f"all-reduces: {POOLED_REDUCES}"
    elif replica.collective is None:
        yield "all-reduces are not counted apart: they are in the law's overhead, or not measured for this GPU"
    else:
        yield f"all-reduces: {replica.collective.all_reduce.name}, {replica.collective.all_reduce.source}"
    if replica.law.source == "given":
        yield EFFICIENCY_UNDER_TENSOR_PARALLEL


def _text(report: Mapping[str, Any], *, markdown: bool) -> Iterator[str]:
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
    yield bullet + f"{demand['requests']:g} request(s) of {demand['context_tokens']:,.0f} tokens on average; {target}"
    if report["prefill_seconds"] is not None:
        whole, linear = report["prefill_seconds"], report["prefill_seconds_linear"]
        attention = f", {linear:.2f} s of it without attention" if whole > linear else ""
        yield bullet + f"a prompt of {demand['prompt_tokens']:,.0f} tokens takes {whole:.2f} s alone{attention}"
    if report["requests"] is not None:
        yield bullet + f"{report['requests']:,} requests fit one replica; {report['binding']} binds"
    need = f"{report['gpus']} GPU(s)" if report["gpus"] is not None else report["sizes"][-1]["why_not"]
    yield bullet + f"for this mix with a reserve of {demand['reserve']:.0%}: {need}"
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


def _cost_lines(report: Mapping[str, Any]) -> Iterator[str]:
    costs, unit = report["cost_per_million_tokens"], f" {report['currency']}".rstrip()
    if costs is None:
        return
    for words, key in (("at the objective", "at_objective"), ("at full load", "at_full_load")):
        if costs[key] is not None:
            yield f"cost per million tokens {words}: {costs[key]:.2f}{unit}"
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot: {path}: {error.strerror or error}") from None
