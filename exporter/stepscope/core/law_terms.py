"""The step law as a sum of terms: each a price times a quantity that the load gives. What a fit works on.

All quantities are the engine's, all GPUs together, as in StepLaw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.step_model import (
    Load,
    LoadRange,
    StepLaw,
    WeightBytes,
    crowding,
    prefill_growth,
    prompt_growth,
    wide_batches,
)

OVERHEAD, SEQUENCE, GROWTH, WIDE = 0, 1, 2, 3
WEIGHTS, KV, KV_CONTEXT = 4, 5, 6
PREFILL, PREFILL_GROWTH, PROMPT, PROMPT_GROWTH = 7, 8, 9, 10

TERMS = (
    "step_overhead_seconds",
    "sequence_cost_seconds",
    "batch_growth_seconds",
    "wide_batch_seconds",
    "weight_seconds_per_byte",
    "kv_seconds_per_byte",
    "kv_context_cost_seconds_per_byte_token",
    "prefill_cost_seconds_per_token",
    "prefill_growth_seconds_per_token",
    "prompt_cost_seconds",
    "prompt_growth_seconds",
)
CORE = (OVERHEAD, SEQUENCE, KV, PREFILL)  # the plain four-parameter law; where weights do not vary they are overhead


@dataclass(frozen=True, slots=True)
class Point:
    """One measured load, all GPUs together.

    weight_bytes: read in a step of so many sequences, None where no model is known. kv_bytes_per_token: None likewise;
    tokens then stand for their bytes. weight: what the point counts for; 1 is one measurement of the usual noise.
    """

    sequences: float
    tokens_in_flight: float
    prefill_tokens_per_step: float
    itl_seconds: float
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    prompts_per_step: float | None = None
    weight: float = 1.0

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV cache read in a step; tokens where their size is not known."""
        return self.tokens_in_flight * (1.0 if self.kv_bytes_per_token is None else self.kv_bytes_per_token)

    @property
    def load(self) -> Load:
        """What `predict` needs of it."""
        return Load(
            sequences=self.sequences,
            tokens_in_flight=self.tokens_in_flight,
            prefill_tokens_per_step=self.prefill_tokens_per_step,
            kv_bytes=self.kv_bytes,
            read_bytes=(self.weight_bytes or 0.0) + self.kv_bytes,
            prompts_per_step=self.prompts_per_step,
        )


def quantities(point: Point) -> tuple[float, ...]:
    """What each of TERMS is multiplied with; the products sum to the predicted ITL."""
    load = point.load
    return (
        1.0,
        point.sequences,
        math.log2(1.0 + point.sequences),
        wide_batches(point.sequences),
        point.weight_bytes or 0.0,
        point.kv_bytes,
        point.kv_bytes * crowding(load),
        point.prefill_tokens_per_step,
        prefill_growth(point.prefill_tokens_per_step),
        load.prompts,
        prompt_growth(load.prompts),
    )


def law_of(
    prices: Sequence[float],
    weights: WeightBytes,
    kv_bytes_per_token: float | None,
    *,
    source: str,
    valid_range: LoadRange | None = None,
    residual_ratio: float | None = None,
    samples: int | None = None,
    low_factor: float = 1.0,
    high_factor: float = 1.0,
) -> StepLaw:
    """The StepLaw of one price per term of TERMS.

    kv_bytes_per_token: 1 where tokens stand for their bytes. A price of 0 per byte is an infinite bandwidth. Without
    weights the effective bandwidth is that of the KV cache.
    """
    kv_bandwidth = 1.0 / prices[KV] if prices[KV] > 0.0 else math.inf
    bandwidth = 1.0 / prices[WEIGHTS] if prices[WEIGHTS] > 0.0 else math.inf
    if weights.read_bytes(1.0) <= 0.0:
        bandwidth = kv_bandwidth
    return StepLaw(
        weights=weights,
        effective_bandwidth_bytes_per_second=bandwidth,
        kv_bandwidth_bytes_per_second=kv_bandwidth,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_context_cost_seconds_per_byte_token=prices[KV_CONTEXT],
        step_overhead_seconds=prices[OVERHEAD],
        sequence_cost_seconds=prices[SEQUENCE],
        batch_growth_seconds=prices[GROWTH],
        wide_batch_seconds=prices[WIDE],
        prefill_cost_seconds_per_token=prices[PREFILL],
        prefill_growth_seconds_per_token=prices[PREFILL_GROWTH],
        prompt_cost_seconds=prices[PROMPT],
        prompt_growth_seconds=prices[PROMPT_GROWTH],
        source=source,
        valid_range=valid_range,
        residual_ratio=residual_ratio,
        samples=samples,
        low_factor=low_factor,
        high_factor=high_factor,
    )
