"""`stepscope plan`: what fits, what binds, how fast, how many GPUs, at what cost; offline or beside an engine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope import config
from stepscope import settings as table
from stepscope.commands import _plan_engine, _plan_flags
from stepscope.commands._plan_inputs import Inputs, gather, inputs_for
from stepscope.commands._plan_text import text
from stepscope.core.collectives import powers_of_two
from stepscope.core.plan import attention_factor, row
from stepscope.core.plan_demand import Replica
from stepscope.core.plan_reality import Reality, checks, scaled
from stepscope.core.plan_report import POOLED_REDUCES, Money, Plan, Users, document
from stepscope.core.plan_svg import draw
from stepscope.core.sizing import MOST_REQUESTS, Sizing, size
from stepscope.core.step_model import Load, LoadRange
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
NOTABLE = 0.1  # share of a prompt's time from which attention is worth a line
RANGE_MARGIN = 1.25  # a load that much larger than any measured is called beyond the calibration
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
    if reality is not None and reality.usable_ratio is not None:
        report["assumptions"].append(_one_load_words(reality, report["law"]))
    if args.plot is not None:
        _write(Path(args.plot), draw(report))
    if args.json:
        print(json.dumps(finite(report), indent=1, allow_nan=False))
    else:
        print("\n".join(text(report, markdown=args.markdown)))
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
    gpu, whole_plan = inputs.given.gpu, document(plan)
    return {
        "model": inputs.model.name,
        "model_source": inputs.model.source,
        "weight_bytes": inputs.model.total_weight_bytes,
        "kv_bytes_per_token": replica.kv_bytes_per_token,
        "gpu": gpu.name if gpu is not None else None,
        "gpu_count": replica.gpu_count,
        **whole_plan,
        "peaks_missing": _peaks_missing(plan, whole_plan["peaks"]),
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
    elif inputs.calibrated and attention_factor(replica, inputs.demand, inputs.demand.prompt_tokens) > 1.0 + NOTABLE:
        yield "attention over long prompts is from the model's dimensions, not from the calibration"
    yield from _tensor_parallel_words(replica)


def _one_load_words(reality: Reality, law: dict[str, Any]) -> str:
    """What the spread of a law that was scaled to an engine means."""
    return (
        f"the step was measured at one load, {reality.requests_running or 0.0:.0f} requests; at others it may be "
        f"{law['low_factor']:.2f} to {law['high_factor']:.2f} times as long, as far as the law's own spread goes"
    )


def _peaks_missing(plan: Plan, peaks: list[Any]) -> str:
    """Why users a day were asked for and are not there."""
    if plan.users is None or peaks:
        return ""
    return plan.sizing.why_not or "how many requests a replica carries or how long one takes is not known"


def _range_words(plan: Plan) -> Iterator[str]:
    """Where the plan goes beyond what the law was fitted on, in its rows or at its limit."""
    law, demand, binding = plan.sizing.replica.law, plan.demand, plan.sizing.binding
    counts = sorted({found.requests for found in plan.rows} | ({binding.requests} if binding is not None else set()))
    counts = [count for count in counts if count < MOST_REQUESTS]
    seen, slowest, context = law.valid_range, law.slowest, demand.mean_tokens
    if seen is not None:
        most = (seen.max_sequences, seen.max_tokens_in_flight, seen.max_prefill_tokens_per_step)
        wide = LoadRange(*(None if one is None else RANGE_MARGIN * one for one in most))
        loads = ((n, Load(n, n * context, demand.prefill_per_step(n))) for n in counts)
        beyond = [count for count, load in loads if not wide.covers(load)]
        if beyond:
            yield f"beyond the loads of the calibration, which saw nothing like it: {beyond[0]:,} requests and more"
    if slowest is not None and (max(counts, default=0) > slowest.max_sequences or context > slowest.max_context_tokens):
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot: {path}: {error.strerror or error}") from None
