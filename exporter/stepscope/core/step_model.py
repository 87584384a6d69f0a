"""The step law: how long a decode step must take, and which part of it is what.

decode_seconds  = overhead + max(memory_seconds, compute_seconds) + sequence_cost * n
memory_seconds  = (weight_bytes(n) + kv_bytes) / effective_bandwidth
compute_seconds = 2 * active_params * n * positions / (peak_flops * decode_efficiency)
prefill_seconds = prefill_cost * prompt_tokens_computed_per_step
itl_mean        = decode_seconds + prefill_seconds
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def covers(self, load: Load) -> bool:
        """True if no figure of the load exceeds what was seen."""
        return (
            (self.max_sequences is None or load.sequences <= self.max_sequences)
            and (self.max_tokens_in_flight is None or load.tokens_in_flight <= self.max_tokens_in_flight)
            and (
                self.max_prefill_tokens_per_step is None
                or load.prefill_tokens_per_step <= self.max_prefill_tokens_per_step
            )
        )


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


@dataclass(frozen=True, slots=True)
class Load:
    """What one step works on. `kv_bytes` wins over tokens x bytes per token where it is known (hybrid models)."""

    sequences: float
    tokens_in_flight: float
    prefill_tokens_per_step: float = 0.0
    positions_per_sequence: float = 1.0  # 1 + drafted tokens per draft under speculative decoding
    kv_bytes: float | None = None
    read_bytes: float | None = None  # the engine's own count of bytes read in the step, all GPUs


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
        prefill = law.prefill_cost_seconds_per_token * load.prefill_tokens_per_step
    tokens = load.sequences * load.positions_per_sequence
    bandwidth = law.effective_bandwidth_bytes_per_second
    if load.read_bytes is not None:
        weight_bytes = max(0.0, load.read_bytes - kv_bytes)
    else:
        weight_bytes = law.weights.read_bytes(tokens)
    weights, kv_cache = weight_bytes / bandwidth, kv_bytes / bandwidth
    sequences = law.sequence_cost_seconds * load.sequences
    if law.active_params and law.compute_flops_per_second:
        compute = 2.0 * law.active_params * tokens / law.compute_flops_per_second
        sequences += max(0.0, compute - weights - kv_cache)
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
