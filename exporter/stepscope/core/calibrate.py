"""What the measured probes say: the fitted law, the bandwidths of the short and the long run, and what to check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from stepscope.core.assume import Calibration, Given
from stepscope.core.fit import SCALE_FLOOR, Fit
from stepscope.core.law_terms import KV, WEIGHTS, Point
from stepscope.core.model_spec import ModelSpec
from stepscope.core.probes import Probe
from stepscope.core.score import quantile
from stepscope.core.step_model import predict

DISAGREEMENT = 0.15  # between short and long run, from which the reasons are worth looking for
KV_MISMATCH = 0.05  # of KV bytes per token; block rounding of the pool stays far below
CACHED_SHARE = 0.01  # of prompt tokens from the prefix cache; random prompts share a block by chance never


@dataclass(frozen=True, slots=True)
class Measured:
    """One probe and what came of it. `point` is what the fit works on: the engine's figures where it gives them.

    client_tokens: context tokens of the decoding requests as the client counts them, to set beside the engine's.
    """

    probe: Probe
    point: Point
    client_itl_seconds: float
    engine_itl_seconds: float | None
    client_tokens: float
    observations: float
    prefill_tokens_per_second: float  # while the prompts of the probe were computed
    cached_tokens: float = 0.0
    prompt_tokens: float = 0.0
    preemptions: float = 0.0


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes/s. short: bytes of one stream's step over its time, all of it: at least so fast are the weights read.

    short_most: the same without the overhead that the data sheet's engine would have; None where none is known.
    long: further KV bytes over the further time they took, the number of streams being the same.
    """

    short: float
    long: float
    short_seconds: float  # the step of the short run
    short_most: float | None = None

    @property
    def disagreement(self) -> float:
        """Long over short, less 1; 0 where an overhead within what is known would make them the same."""
        if self.long < self.short:
            return self.long / self.short - 1.0
        return max(0.0, self.long / (self.short_most or self.short) - 1.0)


def bandwidths(measured: Sequence[Measured], fitted: Fit, *, prior_known: bool) -> Bandwidths | None:
    """None where the probes do not tell: no single short stream, or no two contexts with the same streams.

    prior_known: the data sheet held the fit, so that its overhead is known apart from the weights.
    """
    decode = [one for one in measured if one.probe.kind == "decode"]
    lone = [one for one in decode if one.probe.streams == 1]
    pairs = [
        (few, many)
        for few, many in combinations(sorted(decode, key=lambda one: one.point.kv_bytes), 2)
        if few.probe.streams == many.probe.streams and few.probe != many.probe
    ]
    if not lone or not pairs:
        return None
    short = min(lone, key=lambda one: one.point.kv_bytes)
    few, many = max(pairs, key=lambda pair: pair[1].point.kv_bytes - pair[0].point.kv_bytes)
    further = many.point.itl_seconds - few.point.itl_seconds
    read = (short.point.weight_bytes or 0.0) + short.point.kv_bytes
    if further <= 0.0 or read <= 0.0:
        return None
    most = None
    step = predict(fitted.law, short.point.load) if prior_known else None
    if step is not None and step.weights_seconds + step.kv_cache_seconds > 0.0:
        most = read / (step.weights_seconds + step.kv_cache_seconds)
    return Bandwidths(
        short=read / short.point.itl_seconds,
        long=(many.point.kv_bytes - few.point.kv_bytes) / further,
        short_seconds=short.point.itl_seconds,
        short_most=most,
    )


def spread(measured: Sequence[Measured]) -> float | None:
    """By how much the same probe measured twice differs, as a share of their mean; the median. None: nothing twice."""
    differences = [
        abs(one.point.itl_seconds - other.point.itl_seconds) * 2.0 / (one.point.itl_seconds + other.point.itl_seconds)
        for one, other in combinations(measured, 2)
        if one.probe == other.probe
    ]
    return quantile(differences, 0.5) if differences else None


def calibration_of(
    fitted: Fit,
    points: Sequence[Point],
    given: Given,
    model: ModelSpec,
    *,
    engine_version: str | None,
    noise_ratio: float | None,
    date: str,
    stepscope_version: str,
) -> Calibration:
    """The file's content. A price of 0 per byte becomes the bandwidth that the points could just not have shown."""
    law = fitted.law
    shortest = min(point.itl_seconds for point in points)
    weights, kv = (max(values) for values in zip(*((p.weight_bytes or 0.0, p.kv_bytes) for p in points), strict=True))
    return Calibration(
        effective_bandwidth_bytes_per_second=_finite(fitted.prices[WEIGHTS], weights, shortest),
        kv_bandwidth_bytes_per_second=_finite(fitted.prices[KV], kv, shortest),
        kv_context_cost_seconds_per_byte_token=law.kv_context_cost_seconds_per_byte_token,
        step_overhead_seconds=law.step_overhead_seconds,
        sequence_cost_seconds=law.sequence_cost_seconds,
        batch_growth_seconds=law.batch_growth_seconds,
        wide_batch_seconds=law.wide_batch_seconds,
        prefill_cost_seconds_per_token=law.prefill_cost_seconds_per_token or 0.0,
        prefill_growth_seconds_per_token=law.prefill_growth_seconds_per_token,
        prompt_cost_seconds=law.prompt_cost_seconds,
        prompt_growth_seconds=law.prompt_growth_seconds,
        compute_flops_per_second=law.compute_flops_per_second,
        valid_range=fitted.valid_range,
        # The residuals of a dozen points that chose a dozen prices flatter: each point is judged by the others.
        residual_ratio=max(fitted.score.median_abs_error, fitted.leave_one_out),
        noise_ratio=noise_ratio,
        samples=len(points),
        model=model.name,
        gpu=given.gpu.name if given.gpu is not None else None,
        gpu_count=given.gpu_count,
        engine_version=engine_version,
        dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
        date=date,
        stepscope_version=stepscope_version,
    )


def _finite(price: float, most_bytes: float, shortest_seconds: float) -> float:
    """1 / price; at a price of 0, reading everything in the part of a step that the fit takes for scatter."""
    return 1.0 / price if price > 0.0 else max(most_bytes, 1.0) / (SCALE_FLOOR * shortest_seconds)


@dataclass(frozen=True, slots=True)
class EngineKv:
    """What the engine says of its KV pool. None: it does not."""

    pool_bytes: float | None = None  # all GPUs together
    capacity_tokens: float | None = None
    cache_dtype: str | None = None

    @property
    def bytes_per_token(self) -> float | None:
        """Pool over capacity."""
        if not self.pool_bytes or not self.capacity_tokens:
            return None
        return self.pool_bytes / self.capacity_tokens


def advice(
    found: Bandwidths | None,
    measured: Sequence[Measured],
    fitted: Fit,
    model: ModelSpec,
    given: Given,
    kv: EngineKv,
) -> list[str]:
    """What an operator should look at, one sentence each; empty where everything agrees."""
    lines = []
    cached, prompts = sum(one.cached_tokens for one in measured), sum(one.prompt_tokens for one in measured)
    if cached > CACHED_SHARE * (cached + prompts):
        lines.append(f"{cached:,.0f} prompt tokens came from a prefix cache although every prompt is random")
    if any(one.preemptions for one in measured):
        lines.append("requests were preempted: use fewer --streams or shorter --long-tokens")
    per_token = kv.bytes_per_token
    assumed = model.kv_read_bytes_per_token(given.gpu_count)
    if per_token is not None and assumed and abs(per_token / assumed - 1.0) > KV_MISMATCH:
        lines.append(
            f"the engine keeps {per_token:,.0f} bytes of KV per token (pool over capacity), the model's configuration "
            f"says {assumed:,.0f}: check --model.kv-cache-dtype, sliding windows, and copies per GPU"
        )
    if found is not None:
        lines += _disagreement(found, model, given, kv)
    if math.isinf(fitted.law.kv_bandwidth_bytes_per_second or 0.0):
        lines.append("the step did not grow with the context: the KV bandwidth is a guess; use longer --long-tokens")
    return lines


def _disagreement(found: Bandwidths, model: ModelSpec, given: Given, kv: EngineKv) -> list[str]:
    lines = []
    if given.bandwidth is not None and found.long > given.bandwidth:
        lines.append(
            f"context is read at {found.long:.3g} B/s, faster than the data sheet's {given.bandwidth:.3g}: fewer KV "
            "bytes are read than assumed"
        )
    if abs(found.disagreement) <= DISAGREEMENT:
        return lines
    what = f"{found.disagreement:+.0%} from the short to the long run"
    if found.disagreement > 0.0:
        note = ""
        if found.short_most is None:
            rest = found.short_seconds * (1.0 - found.short / found.long)
            note = (
                f"; or {rest * 1e3:.2f} ms of the short run's {found.short_seconds * 1e3:.2f} ms are overhead "
                "(--hardware.gpu says how much to expect)"
            )
        lines.append(
            f"{what}: check prefix caching (shared prompts), quantised KV (engine: {kv.cache_dtype or 'unknown'}, "
            f"assumed: {model.kv_dtype}), sliding windows (attention: {model.attention}){note}"
        )
    else:
        lines.append(
            f"{what}: check quantised weights (assumed: {model.weight_dtype}), a wider KV cache than assumed (engine: "
            f"{kv.cache_dtype or 'unknown'}, assumed: {model.kv_dtype}), KV copies per GPU, the attention backend"
        )
    return lines
