"""What tensor parallelism costs a decode step: two all-reduces per layer, timed on real GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALL_REDUCES_PER_LAYER = 2  # after attention and after the MLP (Megatron-LM's split, which vLLM uses)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Measured time of one all-reduce. points: (16-bit elements, seconds), ascending."""

    name: str
    prefixes: tuple[str, ...]  # of GPU names, as in the GPU table
    points: tuple[tuple[float, float], ...]
    source: str

    def seconds(self, elements: float) -> float:
        """Time for so many elements: linear between the points and beyond the last, constant below the first."""
        if elements <= self.points[0][0]:
            return self.points[0][1]
        pairs = list(zip(self.points, self.points[1:], strict=False))
        (x0, y0), (x1, y1) = next((pair for pair in pairs if elements <= pair[1][0]), pairs[-1])
        return y0 + (y1 - y0) * (elements - x0) / (x1 - x0)


_SOURCE = "public profiles of vLLM's custom all-reduce in a CUDA graph"
# Elements and microseconds as published with those profiles: 8 GPUs over NVLink, 4 over PCIe.
TABLE = (
    AllReduce("H100 x8 (NVLink)", ("H100", "H200", "GH200"), ((8192, 5.3e-6), (262144, 12e-6), (1048576, 19e-6)),
              _SOURCE),
    AllReduce("A100 x8 (NVLink)", ("A100", "A800"), ((8192, 6.5e-6), (262144, 19e-6), (1048576, 28e-6)), _SOURCE),
    AllReduce("L40S x4 (PCIe)", ("L40S", "L4", "RTX", "A10", "A40", "T4"),
              ((8192, 17.5e-6), (262144, 219e-6), (1048576, 841e-6)), _SOURCE),
)  # fmt: skip


def all_reduce_of(gpu_name: str) -> AllReduce | None:
    """The measured all-reduce that stands for a GPU, by its link; None where nothing comparable was measured."""
    return next((row for row in TABLE if gpu_name.startswith(row.prefixes)), None)


@dataclass(frozen=True, slots=True)
class Collective:
    """The all-reduces of one model on one kind of GPU. hidden: width of the model, elements per token."""

    all_reduce: AllReduce
    layers: int
    hidden: int

    def seconds(self, tokens: float, gpu_count: int) -> float:
        """Seconds per step of so many tokens; 0 on one GPU."""
        if gpu_count < 2:
            return 0.0
        return ALL_REDUCES_PER_LAYER * self.layers * self.all_reduce.seconds(max(tokens, 1.0) * self.hidden)


def powers_of_two(most: int) -> Sequence[int]:
    """1, 2, 4 ... up to `most`: the tensor-parallel sizes that divide head counts."""
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
