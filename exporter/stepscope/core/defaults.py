"""What an engine that nobody calibrated is expected to do: public measurements, pooled by engine and GPU generation.

A row of the table holds prices in units that carry over from one machine to another: multiples of the data sheet's best
time, seconds per layer, seconds per sequence. `benchmarks/accuracy_pool.py` fits and writes the table; docs/accuracy.md
says how well each row predicts series it never saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import mul

from stepscope.core.fit import Prior
from stepscope.core.law_terms import (
    GROWTH,
    KV,
    KV_CONTEXT,
    OVERHEAD,
    PREFILL,
    PREFILL_GROWTH,
    PROMPT,
    PROMPT_GROWTH,
    SEQUENCE,
    TERMS,
    WEIGHTS,
    WIDE,
    law_of,
)
from stepscope.core.roof import Compute
from stepscope.core.step_model import Slowest, StepLaw, WeightBytes

ANY = "any"
# GPU generations of the public sweeps, by the beginning of a GPU's name.
GENERATIONS = {
    "A100": "ampere", "H100": "hopper", "H200": "hopper", "GH200": "hopper",
    "B200": "blackwell", "B300": "blackwell", "GB200": "blackwell", "GB300": "blackwell",
}  # fmt: skip
# NVLink, bytes/s per GPU and direction: data sheets of A100 (600 GB/s both ways), H100 (900), B200 (1,800).
LINKS = {"ampere": 300e9, "hopper": 450e9, "blackwell": 900e9}
LINK_ELSEWHERE = 32e9  # PCIe 5.0 x16, one direction: 32 GT/s x 16 lanes x 128/130
# Dense models on vLLM, each series left out of the pool: the slowest of 206 points took 1.33 times the prediction (70B
# in fp8 on eight B200), of a decode-only sweep (ai-dynamo 0.7.0) within the same loads 1.11. The loads end at 128
# sequences and 7,834 tokens of context each; beyond, that sweep takes up to 2.7 times as long (docs/alert-quality.md).
SLOWEST = Slowest(factor=1.35, max_sequences=128.0, max_context_tokens=7_834.0)
SLOWEST_ENGINE, SLOWEST_GENERATIONS = "vllm", ("hopper", "blackwell")  # FasterTransformer alone on others
SLOWEST_LEAST_PARAMS = 7.5e9  # Llama 8B is the smallest of them; below 1B the host sets the pace
ACTIVATION_BYTES = 2.0  # 16-bit sums
REDUCTIONS_PER_LAYER = 2.0  # after attention and after the MLP (Megatron-LM, arXiv:1909.08053)
PARAMS_PER_LAYER_SQUARED_HIDDEN = 12.0  # 4 h^2 of attention and 8 h^2 of MLP in a plain transformer layer
# Layers by size where they are not given: 32 at 7.5e9 (Llama 8B), 80 at 69.5e9 (Llama 70B), 96 at 175e9 (GPT-3).
LAYERS_AT, LAYERS_OF, LAYERS_POWER = 7.5e9, 32.0, 0.38


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of model and hardware, all GPUs of one engine together.

    peak_flops: dense, at the precision the weights are computed in; None where unknown. layers: None where unknown,
    then guessed from active_params. four_bit: weights of 4 bits, whose reading is slower than their size says.
    """

    engine: str  # vllm, sglang, trtllm, fastertransformer; others count as any
    gpu: str
    gpus: int
    peak_bandwidth_bytes_per_second: float
    peak_flops: float | None
    active_params: float | None
    moe: bool = False
    four_bit: bool = False
    layers: float | None = None

    @property
    def slowest(self) -> Slowest | None:
        """The slowest engine measured of this kind; None where none was, or where they differ beyond use (experts)."""
        measured = self.engine == SLOWEST_ENGINE and self.generation in SLOWEST_GENERATIONS and not self.moe
        return SLOWEST if measured and (self.active_params or 0.0) >= SLOWEST_LEAST_PARAMS else None

    @property
    def generation(self) -> str:
        """ampere, hopper, blackwell or any."""
        names = [start for start in GENERATIONS if self.gpu.upper().startswith(start)]
        return GENERATIONS[names[0]] if names else ANY

    @property
    def layer_count(self) -> float:
        """Layers, given or guessed."""
        if self.layers is not None:
            return self.layers
        return LAYERS_OF * math.pow((self.active_params or LAYERS_AT) / LAYERS_AT, LAYERS_POWER)

    @property
    def reduce_seconds_per_token(self) -> float:
        """Least time of all all-reduces for one token: a ring moves 2 (t - 1) / t of the sums over each link."""
        if self.gpus <= 1 or not self.active_params:
            return 0.0
        hidden = math.sqrt(self.active_params / (PARAMS_PER_LAYER_SQUARED_HIDDEN * self.layer_count))
        moved = REDUCTIONS_PER_LAYER * self.layer_count * hidden * ACTIVATION_BYTES * 2.0 * (self.gpus - 1) / self.gpus
        return moved / LINKS.get(self.generation, LINK_ELSEWHERE)

    @property
    def compute(self) -> Compute | None:
        """What arithmetic costs; None where it is not known."""
        return Compute(self.active_params, self.peak_flops) if self.active_params and self.peak_flops else None

    @property
    def work_seconds_per_token(self) -> float:
        """Least time of the arithmetic for one token; 0 where it is not known."""
        return self.compute.seconds_per_token if self.compute is not None else 0.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """How the prices of single series scatter around pooled ones (order of TERMS).

    width: times the spread that default_prior states. correlation: below the diagonal, row by row.
    """

    width: tuple[float, ...]
    correlation: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Pooled:
    """One row of the table: prices of an engine on a GPU generation, dense or mixture of experts."""

    overhead_seconds: float
    layer_seconds: float
    weight_reads: float  # times the data sheet's best time, 1 / share of peak bandwidth
    four_bit_reads: float  # on top, for weights of 4 bits
    kv_reads: float
    sequence_seconds: float
    reduce_work: float  # times the best time of the all-reduces, per sequence
    prefill_work: float  # times the best time of the arithmetic, 1 / share of peak FLOP/s
    prefill_token_seconds: float
    prefill_growth_work: float
    prompt_growth_seconds: float
    low: float = 1.0  # measured / predicted on series left out: 5th percentile
    high: float = 1.0  # 95th
    series: int = 0  # of the own engine and generation
    points: int = 0
    scatter: Scatter | None = None  # of its kind; None: as wide as stated, each price on its own


COEFFICIENTS = tuple(field.name for field in fields(Pooled))[:11]

# Spread of a price around the pooled one, stated; the table says how much wider or narrower the fits of single series
# scatter, and which prices run high together (docs/accuracy.md).
SPREAD_SECONDS = {OVERHEAD: 1e-3, SEQUENCE: 2e-5, GROWTH: 2e-4, PROMPT: 5e-3, PROMPT_GROWTH: 1e-3}
SPREAD_READS = 0.3  # times the best time
SPREAD_PREFILL = 0.6
SPREAD_CONTEXT = 2e-5  # of a KV byte's best time, per token of context
SPREAD_OF_VALUE = 0.4  # of the pooled price itself
# Mixtures of experts scatter more, most in what grows with the batch; overhead and weights are held closer, or few
# points would take one for the other.
MOE_WIDER, MOE_SPREAD_OF_VALUE = 5.0, 3.0
MOE_CLOSE = {OVERHEAD: (5.0, 1.0), WEIGHTS: (1.0, 1.0)}
# Nothing reads faster than the data sheet says; for mixtures of experts the bytes themselves are an estimate, up to
# twice too high (routing is not uniform, and every other layer may keep only a window of the KV cache).
LEAST_READS, MOE_LEAST_READS = 1.0, 0.5


def prices_of(row: Sequence[float], machine: Machine) -> tuple[float, ...]:
    """One price per term of TERMS from the coefficients of a row (order of COEFFICIENTS): linear in them."""
    (overhead, layer, reads, four_bit, kv, sequence, reduce, work, token, growth, prompt) = row
    prices = [0.0] * len(TERMS)
    prices[OVERHEAD] = overhead + layer * machine.layer_count
    prices[WEIGHTS] = (reads + four_bit * machine.four_bit) / machine.peak_bandwidth_bytes_per_second
    prices[KV] = kv / machine.peak_bandwidth_bytes_per_second
    prices[SEQUENCE] = sequence + reduce * machine.reduce_seconds_per_token
    prices[PREFILL] = work * machine.work_seconds_per_token + token
    prices[PREFILL_GROWTH] = growth * machine.work_seconds_per_token
    prices[PROMPT_GROWTH] = prompt
    return tuple(prices)


def coefficients(row: Pooled) -> tuple[float, ...]:
    """The numbers of a row, in the order of COEFFICIENTS."""
    return tuple(float(getattr(row, name)) for name in COEFFICIENTS)


def row_of(numbers: Sequence[float], low: float = 1.0, high: float = 1.0, series: int = 0, points: int = 0) -> Pooled:
    """A row from its coefficients, in the order of COEFFICIENTS."""
    overhead, layer, reads, four_bit, kv, sequence, reduce, work, token, growth, prompt = numbers
    return Pooled(
        overhead, layer, reads, four_bit, kv, sequence, reduce, work, token, growth, prompt, low, high, series, points
    )


def default_prior(row: Pooled, machine: Machine) -> Prior:
    """The pooled prices with their spread, for a fit."""
    mean = prices_of(coefficients(row), machine)
    byte = 1.0 / machine.peak_bandwidth_bytes_per_second
    work = machine.work_seconds_per_token or 1e-3  # unknown: slower than any engine, so that the points decide
    spread = [0.0] * len(TERMS)
    for term, seconds in SPREAD_SECONDS.items():
        spread[term] = seconds
    spread[WEIGHTS] = spread[KV] = SPREAD_READS * byte
    spread[KV_CONTEXT] = SPREAD_CONTEXT * byte
    spread[WIDE] = 1e-3
    spread[PREFILL] = SPREAD_PREFILL * work
    spread[PREFILL_GROWTH] = 0.5 * SPREAD_PREFILL * work
    for term, value in enumerate(mean):
        wider, share = 1.0, SPREAD_OF_VALUE
        if machine.moe:
            wider, share = MOE_CLOSE.get(term, (MOE_WIDER, MOE_SPREAD_OF_VALUE))
        spread[term] = max(wider * spread[term], share * value)
    least = [0.0] * len(TERMS)
    least[WEIGHTS] = least[KV] = (MOE_LEAST_READS if machine.moe else LEAST_READS) * byte
    centre = tuple(map(max, mean, least))
    if row.scatter is None:
        return Prior(centre, tuple(spread), tuple(least))
    return Prior(centre, tuple(map(mul, spread, row.scatter.width)), tuple(least), row.scatter.correlation)


def default_law(row: Pooled, machine: Machine, weights: WeightBytes, kv_bytes_per_token: float | None) -> StepLaw:
    """The step law of an engine that was never measured, with the spread seen on engines left out of the pool.

    Reads are held to the data sheet's best time: a pool in which batch and context grow together may give all of their
    cost to one of them, and a KV cache that is read for nothing would hide the very thing one looks for.
    """
    law = law_of(
        default_prior(row, machine).mean,
        weights,
        kv_bytes_per_token,
        source="datasheet",
        low_factor=row.low,
        high_factor=row.high,
    )
    return replace(law, slowest=machine.slowest)


def find_row(table: dict[tuple[str, str, str], Pooled], machine: Machine) -> Pooled:
    """The row of an engine, a generation and a kind; rows for any stand in for engines and GPUs never measured."""
    kind = "moe" if machine.moe else "dense"
    engines = {engine for engine, _, _ in table}
    engine = machine.engine if machine.engine in engines else ANY
    return table[(engine, machine.generation, kind)]
