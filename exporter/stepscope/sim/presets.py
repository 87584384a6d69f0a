"""Models, GPUs and the engine's settings that the simulator knows by name; every number can be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import ConfigError

if TYPE_CHECKING:
    from stepscope.sim.physics import Physics


@dataclass(frozen=True, slots=True)
class GpuPreset:
    """One GPU: peak bytes/s, peak dense 16-bit FLOP/s, memory in bytes, bytes/s to its peers in one direction."""

    bandwidth_bytes_per_second: float
    flops: float
    memory_bytes: float
    link_bytes_per_second: float = 450e9  # NVLink 4 per direction, NVIDIA H100 data sheet


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """One dense model at 16 bit. Resident weights include the input embedding, those read per decode step do not."""

    model_id: str
    layers: int
    hidden: int
    attention_width: int  # query heads x head_dim
    params: float
    active_params: float  # of them read per decode step
    kv_bytes_per_token: float  # 2 x layers x kv_heads x head_dim x 2 bytes
    max_model_len: int = 131072  # tokens

    @property
    def decode_weight_bytes(self) -> float:
        """Bytes read per decode step."""
        return 2.0 * self.active_params

    @property
    def resident_weight_bytes(self) -> float:
        """Bytes that occupy GPU memory."""
        return 2.0 * self.params


GPUS = {
    "H100-SXM": GpuPreset(3350e9, 989e12, 80e9),  # NVIDIA H100 data sheet, SXM5, dense
    "H200-SXM": GpuPreset(4800e9, 989e12, 141e9),  # NVIDIA H200 data sheet
    "A100-80GB-SXM": GpuPreset(2039e9, 312e12, 80e9),  # NVIDIA A100 data sheet
    "RTX4090": GpuPreset(1008e9, 165.2e12, 24e9),  # NVIDIA Ada whitepaper: dense, fp32 accumulate
    "L40S": GpuPreset(864e9, 362e12, 48e9, 32e9),  # NVIDIA L40S data sheet: dense; PCIe 4.0 x16, 64 GB/s both ways
    "L4": GpuPreset(300e9, 121e12, 24e9, 32e9),  # NVIDIA L4 data sheet: 242e12 with sparsity; PCIe 4.0 x16
}

# Sizes from the models' published config.json; max_model_len of Qwen3 8B and 14B with their documented YaRN
# factor of 4.
MODELS = {
    # Its embedding is tied to the output, and so read in every step.
    "qwen3-0.6b": ModelPreset(
        "Qwen/Qwen3-0.6B", 28, 1024, 16 * 128, 0.59605e9, 0.59605e9, 2 * 28 * 8 * 128 * 2, max_model_len=40960
    ),
    "qwen3-8b": ModelPreset("Qwen/Qwen3-8B", 36, 4096, 32 * 128, 8.1904e9, 7.5681e9, 2 * 36 * 8 * 128 * 2),
    "qwen3-14b": ModelPreset("Qwen/Qwen3-14B", 40, 5120, 40 * 128, 14.7683e9, 13.9904e9, 2 * 40 * 8 * 128 * 2),
    "llama-3.1-8b": ModelPreset("meta-llama/Llama-3.1-8B", 32, 4096, 32 * 128, 8.03e9, 7.5047e9, 2 * 32 * 8 * 128 * 2),
    "llama-3.1-70b": ModelPreset(
        "meta-llama/Llama-3.1-70B", 80, 8192, 64 * 128, 70.5524e9, 69.5017e9, 2 * 80 * 8 * 128 * 2
    ),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One simulated deployment: what `vllm serve` would be told, and the physics underneath.

    `num_gpu_blocks` is per data-parallel engine; as in vLLM one block is never handed out (the null block).
    """

    physics: Physics
    num_gpu_blocks: int
    model_name: str = "Qwen/Qwen3-8B"  # the served name
    model_root: str = "Qwen/Qwen3-8B"
    max_model_len: int = 131072  # tokens
    block_size: int = 16  # tokens; vLLM's default on CUDA
    max_num_seqs: int = 256  # vLLM's default for serving below H100's 1,024
    max_num_batched_tokens: int = 2048  # chunk of the published example
    data_parallel: int = 1
    draft_tokens: int = 0  # per step and sequence; 0 = no speculative decoding
    draft_acceptance: float = 0.0  # probability that a draft is accepted, given that those before were
    prefix_caching: bool = True
    gpu_memory_utilization: float = 0.9
    mfu_metrics: bool = False  # --enable-mfu-metrics: estimated FLOPs and bytes move
    vllm_version: str = "0.32.0"

    def __post_init__(self) -> None:
        """Raise ConfigError, naming the setting, for what cannot run."""
        if self.num_gpu_blocks < 2:
            raise ConfigError(f"sim: no room for KV blocks (num_gpu_blocks is {self.num_gpu_blocks}, at least 2)")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "data_parallel", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sim: {name} must be at least 1")
        if self.draft_tokens < 0 or not 0.0 <= self.draft_acceptance <= 1.0:
            raise ConfigError("sim: speculative K must be at least 0 and P within 0..1")
        if self.max_num_batched_tokens < self.max_num_seqs * (1 + self.draft_tokens):
            raise ConfigError(
                f"sim: max_num_batched_tokens ({self.max_num_batched_tokens}) must hold one step of max_num_seqs "
                f"({self.max_num_seqs}) sequences x {1 + self.draft_tokens} positions"
            )

    @property
    def capacity_tokens(self) -> int:
        """KV capacity of one engine in tokens, as vLLM publishes it."""
        return self.num_gpu_blocks * self.block_size


def kv_blocks(gpu: GpuPreset, model: ModelPreset, tensor_parallel: int, utilization: float, block_size: int) -> int:
    """Blocks that fit: GPU memory x utilization - resident weights, over bytes per block. May be 0 or below."""
    free_bytes = gpu.memory_bytes * tensor_parallel * utilization - model.resident_weight_bytes
    return int(free_bytes // (model.kv_bytes_per_token * block_size))
