"""How long one engine step takes in the simulator: a law of its own, with features the product's law does not know.

    step = launch + weights + attention + prefill + collectives + sequence_cost * n, times log-normal jitter

A step of n decoding sequences reads all weights once and each sequence's whole KV. What the product does not model: the
batch is padded to the next captured size, attention loses efficiency as contexts grow, prefill attention is quadratic,
prefill may hide part of the weight reading, and every step jitters.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from stepscope.sim.presets import GpuPreset, ModelPreset

# vLLM's default CUDA-graph sizes: 1, 2, 4, then every 8 to 256, then every 16 to 512 (vllm/config/vllm.py).
CAPTURED_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


def captured_size(sequences: int) -> int:
    """The batch size that really runs for `sequences`: the next captured one, or the size itself past the last."""
    index = bisect_left(CAPTURED_SIZES, sequences)
    return CAPTURED_SIZES[index] if index < len(CAPTURED_SIZES) else sequences


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes. `chunks`: (prompt tokens computed, tokens already in the context) per prompt chunk."""

    sequences: int = 0  # decoding
    positions: int = 1  # per decoding sequence: 1 + drafted tokens
    context_tokens: int = 0  # sum over decoding sequences
    context_tokens_squared: int = 0  # sum of squares, for the loss that grows with the context
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Physics:
    """Parameters of the simulator's step-time law; bytes and FLOPs are summed over the engine's GPUs.

    The shares and extra features are the simulator's choices, not measurements; the presets say what they are for.
    """

    weight_bytes: float  # read per decode step
    active_params: float
    kv_bytes_per_token: float
    layers: int
    hidden: int  # model width
    attention_width: int  # query heads x head_dim
    peak_bandwidth_bytes_per_second: float
    peak_flops: float
    tensor_parallel: int = 1
    attention_share: float | None = None  # of peak, for reading KV; None: as for weights
    bandwidth_share: float = 0.6  # of peak; the share docs/physics.md starts from
    decode_flops_share: float = 0.6  # of peak
    prefill_flops_share: float = 0.645  # of peak; the published worked example's 64-65 %
    launch_seconds: float = 0.0
    sequence_seconds: float = 0.0  # CPU cost per sequence and step
    padding_loss: float = 0.0  # share of the weight time lost per share of the captured batch that is padding
    attention_loss_per_100k: float = 0.0  # relative slowdown of reading the KV of a 100,000-token context, linear
    jitter: float = 0.0  # standard deviation of the logarithm of the step time
    prefill_attention_share: float = 1.0  # of the full quadratic term
    prefill_overlap: float = 0.0  # share of the weight reading that prefill compute hides
    allreduce_seconds: float = 0.0  # latency of one all-reduce; two per layer under tensor parallelism
    link_bytes_per_second: float = 450e9  # to each peer, one direction: NVLink 4, NVIDIA H100 data sheet
    draft_seconds: float = 0.0  # per drafted token and step

    def __post_init__(self) -> None:
        """Refuse what has no meaning. ValueError names the field."""
        for name in ("weight_bytes", "kv_bytes_per_token", "peak_bandwidth_bytes_per_second", "peak_flops"):
            if not getattr(self, name) > 0:
                raise ValueError(f"physics: {name} must be above 0")
        for name in ("bandwidth_share", "decode_flops_share", "prefill_flops_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"physics: {name} must be above 0 and at most 1")

    @classmethod
    def plain(cls, gpu: GpuPreset, model: ModelPreset, tensor_parallel: int = 1) -> Physics:
        """The sizes of a model on `tensor_parallel` GPUs, with every extra feature at 0 and no jitter."""
        return cls(
            weight_bytes=model.decode_weight_bytes,
            active_params=model.active_params,
            kv_bytes_per_token=model.kv_bytes_per_token,
            layers=model.layers,
            hidden=model.hidden,
            attention_width=model.attention_width,
            peak_bandwidth_bytes_per_second=gpu.bandwidth_bytes_per_second * tensor_parallel,
            peak_flops=gpu.flops * tensor_parallel,
            tensor_parallel=tensor_parallel,
            link_bytes_per_second=gpu.link_bytes_per_second,
            prefill_attention_share=0.0,
        )

    @classmethod
    def well_behaved(cls, gpu: GpuPreset, model: ModelPreset, tensor_parallel: int = 1) -> Physics:
        """A healthy vLLM on Hopper, as public measurements show it, with small extras.

        Dense models on H100 and H200 (ai-dynamo/aiconfigurator silicon_sample.csv, Apache-2.0): about 70 us per layer
        and step, weights close to peak bandwidth, KV at about 64 % of it, prompt chunks at 60 % of peak FLOP/s.
        """
        return replace(
            cls.plain(gpu, model, tensor_parallel),
            bandwidth_share=0.94,
            attention_share=0.64,
            prefill_flops_share=0.6,
            launch_seconds=70e-6 * model.layers,
            sequence_seconds=2e-6,
            padding_loss=0.05,
            attention_loss_per_100k=0.01,
            jitter=0.03,
            prefill_attention_share=0.1,
            allreduce_seconds=1e-6 if tensor_parallel > 1 else 0.0,
            draft_seconds=0.05e-3,
        )

    @classmethod
    def realistic(cls, gpu: GpuPreset, model: ModelPreset, tensor_parallel: int = 1) -> Physics:
        """Every feature large enough to matter: a law of four parameters has to cope with what it does not know."""
        return replace(
            cls.plain(gpu, model, tensor_parallel),
            bandwidth_share=0.72,
            launch_seconds=2e-3,
            sequence_seconds=20e-6,
            padding_loss=0.35,
            attention_loss_per_100k=0.25,
            jitter=0.10,
            prefill_attention_share=1.0,
            prefill_overlap=0.7,
            allreduce_seconds=8e-6 if tensor_parallel > 1 else 0.0,
            draft_seconds=0.4e-3,
        )

    def step_seconds(self, work: StepWork) -> float:
        """Seconds one step takes, before jitter and faults. Nothing to do costs the launch alone."""
        seconds = self.launch_seconds
        bandwidth = self.peak_bandwidth_bytes_per_second * self.bandwidth_share
        weights = self.weight_bytes / bandwidth
        n = work.sequences
        if n:
            padded = captured_size(n)
            weights *= 1.0 + self.padding_loss * (padded - n) / padded
            compute = 2.0 * self.active_params * padded * work.positions / (self.peak_flops * self.decode_flops_share)
            loss_tokens = self.attention_loss_per_100k * work.context_tokens_squared / 100e3
            reading = self.peak_bandwidth_bytes_per_second * (self.attention_share or self.bandwidth_share)
            attention = (work.context_tokens + loss_tokens) * self.kv_bytes_per_token / reading
            seconds += max(weights + attention, compute)
            seconds += self.sequence_seconds * n + self.draft_seconds * (work.positions - 1)
        prefill_tokens = 0
        if work.chunks:
            prefill, prefill_tokens = self._prefill_seconds(work.chunks)
            if not n:  # nothing decodes: the weights are read for the prompt chunks alone
                seconds += max(weights, prefill)
            else:
                seconds += prefill - self.prefill_overlap * min(weights, prefill)
            seconds += self.sequence_seconds * len(work.chunks)
        if self.tensor_parallel > 1:
            seconds += self._collective_seconds(n * work.positions + prefill_tokens)
        return seconds

    def _prefill_seconds(self, chunks: tuple[tuple[int, int], ...]) -> tuple[float, int]:
        """(seconds, tokens). 2 FLOPs per parameter and token; 4 x layers x width per pair of attending tokens."""
        flops, total = 0.0, 0
        for tokens, before in chunks:
            total += tokens
            attended = tokens * (before + tokens / 2.0)
            quadratic = 4.0 * self.layers * self.attention_width * attended
            flops += 2.0 * self.active_params * tokens + self.prefill_attention_share * quadratic
        return flops / (self.peak_flops * self.prefill_flops_share), total

    def _collective_seconds(self, tokens: int) -> float:
        """Two all-reduces per layer of `tokens` x hidden 16-bit values; a ring moves 2 (tp - 1) / tp of them."""
        ring = 2.0 * (self.tensor_parallel - 1) / self.tensor_parallel
        transfer = tokens * self.hidden * 2.0 * ring / self.link_bytes_per_second
        return 2.0 * self.layers * (self.allreduce_seconds + transfer)
