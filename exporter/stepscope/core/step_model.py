"""The step law: how long a decode step must take, and which part of it is what.

decode_seconds  = overhead + max(memory_seconds, compute_seconds) + sequence_cost * n
memory_seconds  = weight_bytes(n) / effective_bandwidth + kv_bytes / kv_bandwidth
compute_seconds = 2 * active_params * n * positions / (peak_flops * decode_efficiency)
prefill_seconds = prefill_cost * P                           P: prompt tokens computed per step
itl_mean        = decode_seconds + prefill_seconds

A fitted law may add terms that measured engines showed (docs/accuracy.md says what each is worth). All are 0 unless
set, and kv_bandwidth is the effective bandwidth unless set:

kv cache   + kv_context_cost * kv_bytes * c * (1 - 1/n)       c: mean context; long contexts side by side read slower
sequences  + batch_growth * log2(1 + n)                       experts, collectives and samplers grow with the batch,
           + wide_batch * (ceil(n * positions / 256) - 1)     and past each 256 tokens matrices take another pass
prefill    + prefill_growth * P * (P / 1024)^(1/3)            the more prompt tokens, the less idle compute is left
           + prompt_cost * r + prompt_growth * log2(1 + 8 r)  r: prompts begun per step; a step with a chunk costs more

r is P over the mean prompt. Where it is not given it is the steady state's: a sequence that began with i prompt tokens
and ends after o more holds c = i + o/2 on average and P = n i / o, hence r = n / o = (P + n/2) / c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDE_BATCH_TOKENS = 256  # H100's knee; steps at 256, 512, ... in the decode sweep of vLLM 0.10 (docs/accuracy.md)
GROWTH_TOKENS = 1024.0  # at this many prompt tokens per step prefill_growth counts as it stands
PROMPT_GROWTH_SCALE = 8.0  # best of 1..64 in cross-validation on the public sweeps (docs/accuracy.md)


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of weights that a decode step of n sequences reads, summed over the engine's GPUs.

    Dense models: `always_bytes` alone. Mixture of experts: `always_bytes` plus, per MoE layer, the expected number of
    distinct experts E * (1 - (1 - k/E)^n) of `expert_bytes` each (n independent draws of k out of E).
    """

    always_bytes: float
    expert_bytes: float = 0.0  # one expert of one layer
    experts: int = 0  # E
    experts_per_token: int = 0  # k
    moe_layers: int = 0

    def read_bytes(self, sequences: float) -> float:
        """Bytes read in a step of `sequences` tokens; at least one token is assumed."""
        if not self.experts:
            return self.always_bytes
        share_untouched: float = (1.0 - self.experts_per_token / self.experts) ** max(sequences, 1.0)
        return self.always_bytes + self.moe_layers * self.expert_bytes * self.experts * (1.0 - share_untouched)


@dataclass(frozen=True, slots=True)
class LoadRange:
    """The loads that a calibration has seen; beyond them the law is an extrapolation."""

    max_sequences: float | None = None
    max_tokens_in_flight: float | None = None
    max_prefill_tokens_per_step: float | None = None
    min_sequences: float | None = None

    def covers(self, load: Load, slack: float = 1.0) -> bool:
        """True if no figure of the load exceeds what was seen, nor falls below it, by more than the factor `slack`."""
        largest = (
            (self.max_sequences, load.sequences),
            (self.max_tokens_in_flight, load.tokens_in_flight),
            (self.max_prefill_tokens_per_step, load.prefill_tokens_per_step),
        )
        is_small = self.min_sequences is not None and load.sequences * slack < self.min_sequences
        return not is_small and all(limit is None or figure <= slack * limit for limit, figure in largest)


@dataclass(frozen=True, slots=True)
class Slowest:
    """The slowest engine ever measured against a law that no measurement of the engine at hand went into.

    factor: times the predicted mean ITL, at loads up to so many sequences of so many tokens each on average.
    """

    factor: float
    max_sequences: float
    max_context_tokens: float

    def may_explain(self, load: Load, predicted: StepTime, mean_itl_seconds: float) -> bool:
        """True if a healthy engine may take this long, or if none was measured under such a load."""
        if load.sequences > self.max_sequences or load.mean_context_tokens > self.max_context_tokens:
            return True
        return mean_itl_seconds <= self.factor * predicted.itl_seconds


@dataclass(frozen=True, slots=True)
class StepLaw:
    """The parameters of the law with where they come from. All GPUs of the engine together."""

    weights: WeightBytes
    effective_bandwidth_bytes_per_second: float
    kv_bytes_per_token: float | None  # None: KV bytes must be given (hybrid models)
    step_overhead_seconds: float = 0.0
    sequence_cost_seconds: float = 0.0
    prefill_cost_seconds_per_token: float | None = 0.0  # None: not known
    active_params: float | None = None
    compute_flops_per_second: float | None = None  # peak x decode efficiency
    source: str = "datasheet"  # file, learned, datasheet
    valid_range: LoadRange | None = None  # None: not limited
    identity: str = ""  # of the calibration, for the info metric
    residual_ratio: float | None = None  # median relative error on its own points
    samples: int | None = None  # points it was fitted on
    low_factor: float = 1.0  # multiplies the decode step: the source's own spread
    high_factor: float = 1.0
    kv_bandwidth_bytes_per_second: float | None = None  # None: the effective bandwidth
    kv_context_cost_seconds_per_byte_token: float = 0.0
    batch_growth_seconds: float = 0.0  # per doubling of the batch
    wide_batch_seconds: float = 0.0  # per further WIDE_BATCH_TOKENS
    prefill_growth_seconds_per_token: float = 0.0
    prompt_cost_seconds: float = 0.0
    prompt_growth_seconds: float = 0.0  # per doubling of prompts per step
    slowest: Slowest | None = None  # source datasheet; None: no engine like this one was ever measured


@dataclass(frozen=True, slots=True)
class Load:
    """What one step works on. `kv_bytes` wins over tokens x bytes per token where it is known (hybrid models)."""

    sequences: float
    tokens_in_flight: float
    prefill_tokens_per_step: float = 0.0
    positions_per_sequence: float = 1.0  # 1 + drafted tokens per draft under speculative decoding
    kv_bytes: float | None = None
    read_bytes: float | None = None  # the engine's own count of bytes read in the step, all GPUs
    prompts_per_step: float | None = None  # None: as in the steady state

    @property
    def mean_context_tokens(self) -> float:
        """Tokens in flight per sequence."""
        return self.tokens_in_flight / max(self.sequences, 1.0)

    @property
    def prompts(self) -> float:
        """Prompts started per step: as given, else the steady state's, at most one per sequence; 0 without prefill."""
        if self.prefill_tokens_per_step <= 0.0:
            return 0.0
        if self.prompts_per_step is not None:
            return self.prompts_per_step
        arrivals = self.prefill_tokens_per_step + 0.5 * self.sequences
        return min(arrivals / max(self.mean_context_tokens, 1.0), max(self.sequences, 1.0))


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per step, split; the five parts sum to `itl_seconds`."""

    overhead_seconds: float
    weights_seconds: float
    kv_cache_seconds: float
    sequences_seconds: float
    prefill_seconds: float
    decode_low_seconds: float
    decode_high_seconds: float

    @property
    def decode_seconds(self) -> float:
        """The decode step without prefill."""
        return self.overhead_seconds + self.weights_seconds + self.kv_cache_seconds + self.sequences_seconds

    @property
    def itl_seconds(self) -> float:
        """What a request sees: decode step plus the prefill mixed into it."""
        return self.decode_seconds + self.prefill_seconds


def compute_seconds(law: StepLaw, load: Load) -> float:
    """Time the arithmetic of a decode step takes; 0 where the active parameters or the compute speed are not known."""
    if not law.active_params or not law.compute_flops_per_second:
        return 0.0
    tokens = load.sequences * load.positions_per_sequence
    return 2.0 * law.active_params * tokens / law.compute_flops_per_second


def sequences_seconds(law: StepLaw, load: Load) -> float:
    """What the number of sequences costs, apart from compute beyond memory."""
    wide = wide_batches(load.sequences * load.positions_per_sequence)
    growth = math.log2(1.0 + load.sequences)
    return (
        law.sequence_cost_seconds * load.sequences + law.batch_growth_seconds * growth + law.wide_batch_seconds * wide
    )


def wide_batches(tokens: float) -> float:
    """Passes beyond the first that a step of so many tokens takes through the matrices."""
    return max(0.0, math.ceil(tokens / WIDE_BATCH_TOKENS) - 1.0)


def crowding(load: Load) -> float:
    """Mean context x (1 - 1/n), tokens: a sequence alone has the memory to itself."""
    return load.mean_context_tokens * (1.0 - 1.0 / max(load.sequences, 1.0))


def prefill_growth(tokens: float) -> float:
    """Prompt tokens per step times the cube root of their number in units of GROWTH_TOKENS."""
    return tokens * math.cbrt(tokens / GROWTH_TOKENS)


def prompt_growth(prompts: float) -> float:
    """Doublings that so many prompts per step count for."""
    return math.log2(1.0 + PROMPT_GROWTH_SCALE * prompts)


def _prefill_terms(law: StepLaw, load: Load) -> float:
    """Prefill beyond a price per token."""
    return (
        law.prefill_growth_seconds_per_token * prefill_growth(load.prefill_tokens_per_step)
        + law.prompt_cost_seconds * load.prompts
        + law.prompt_growth_seconds * prompt_growth(load.prompts)
    )


def predict(law: StepLaw, load: Load) -> StepTime | None:
    """The time of one decode step under `load`.

    None where it cannot be known: KV bytes unknown, or prompt tokens in the step and no prefill cost. What compute
    exceeds memory by is counted with the sequences (it grows with them); without active parameters it is skipped.
    """
    kv_bytes = load.kv_bytes
    if kv_bytes is None:
        if law.kv_bytes_per_token is None:
            return None
        kv_bytes = load.tokens_in_flight * law.kv_bytes_per_token
    prefill = 0.0
    if load.prefill_tokens_per_step > 0.0:
        if law.prefill_cost_seconds_per_token is None:
            return None
        prefill = law.prefill_cost_seconds_per_token * load.prefill_tokens_per_step + _prefill_terms(law, load)
    tokens = load.sequences * load.positions_per_sequence
    bandwidth = law.effective_bandwidth_bytes_per_second
    if load.read_bytes is not None:
        weight_bytes = max(0.0, load.read_bytes - kv_bytes)
    else:
        weight_bytes = law.weights.read_bytes(tokens)
    weights = weight_bytes / bandwidth
    reads = kv_bytes / (law.kv_bandwidth_bytes_per_second or bandwidth)
    kv_cache = reads + law.kv_context_cost_seconds_per_byte_token * kv_bytes * crowding(load)
    # The context cost counts as reading: below the roof both are hidden, above it both are paid.
    sequences = sequences_seconds(law, load) + max(0.0, compute_seconds(law, load) - weights - kv_cache)
    decode = law.step_overhead_seconds + weights + kv_cache + sequences
    return StepTime(
        overhead_seconds=law.step_overhead_seconds,
        weights_seconds=weights,
        kv_cache_seconds=kv_cache,
        sequences_seconds=sequences,
        prefill_seconds=prefill,
        decode_low_seconds=decode * law.low_factor,
        decode_high_seconds=decode * law.high_factor,
    )
