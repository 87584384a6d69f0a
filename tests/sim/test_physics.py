"""The simulator's own step-time law."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.sim.physics import CAPTURED_SIZES, Physics, StepWork, captured_size
from stepscope.sim.presets import GPUS, MODELS, kv_blocks

H100, QWEN = GPUS["H100-SXM"], MODELS["qwen3-8b"]
PRESETS = [Physics.plain(H100, QWEN), Physics.well_behaved(H100, QWEN), Physics.realistic(H100, QWEN)]


def even(sequences: int, context: int) -> StepWork:
    """A decode step of equal contexts."""
    return StepWork(sequences, 1, sequences * context, sequences * context * context)


def test_the_published_example_comes_out_of_the_plain_law() -> None:
    """40 chats x 2,000 tokens, then two 100,000-token sessions: about 75 and 36 tokens/s at 60 % of peak bandwidth."""
    plain = Physics.plain(H100, QWEN)
    chats = plain.step_seconds(even(40, 2000))
    both = plain.step_seconds(StepWork(42, 1, 280_000, 40 * 2000**2 + 2 * 100_000**2))
    assert chats == pytest.approx((15.1362e9 + 80_000 * 147_456) / 2.01e12, rel=1e-9)
    assert both == pytest.approx((15.1362e9 + 280_000 * 147_456) / 2.01e12, rel=1e-9)
    assert both / chats > 2.0


def test_a_prefill_chunk_slows_the_chats_to_about_sixteen_tokens_a_second() -> None:
    """2,048 prompt tokens at 64.5 % of peak FLOP/s add 48.6 ms to the step of 40 chats."""
    plain = Physics.plain(H100, QWEN)
    mixed = plain.step_seconds(replace(even(40, 2000), chunks=((2048, 0),)))
    assert mixed - plain.step_seconds(even(40, 2000)) == pytest.approx(2 * 7.5681e9 * 2048 / (0.645 * 989e12), rel=1e-9)
    assert 15 < 1 / mixed < 17


def test_the_kv_capacity_of_the_example_is_377_thousand_tokens() -> None:
    """80e9 B x 0.9 minus the resident weights."""
    assert kv_blocks(H100, QWEN, 1, 0.9, 16) * 16 == pytest.approx(377_000, rel=0.002)


@pytest.mark.parametrize(("sequences", "tokens"), [(40, 80_000), (42, 280_000), (46, 130_000)])
def test_the_well_behaved_preset_stays_within_three_percent_of_what_engines_show(sequences: int, tokens: int) -> None:
    """At the loads of the demo: 70 us a layer, weights at 94 % of peak bandwidth, KV at 64 %; the extras are small."""
    agents = 2 if tokens == 280_000 else 0
    squared = agents * 100_000**2 + (tokens - agents * 100_000) ** 2 // (sequences - agents)
    work = StepWork(sequences, 1, tokens, squared)
    shown = 36 * 70e-6 + 15.1362e9 / (0.94 * 3.35e12) + tokens * 147_456 / (0.64 * 3.35e12)
    ratio = Physics.well_behaved(H100, QWEN).step_seconds(work) / shown
    assert 1.0 < ratio < 1.03


def test_the_realistic_preset_has_effects_the_product_does_not_know() -> None:
    """A batch just above a captured size loses 5 % of the weight time or more, a 100k context 20 % of its KV."""
    law = replace(Physics.realistic(H100, QWEN), launch_seconds=0.0, sequence_seconds=0.0)
    at_size, above = law.step_seconds(even(32, 0)), law.step_seconds(even(33, 0))
    assert above / at_size > 1.05
    weights = law.step_seconds(even(1, 0))
    one_long = law.step_seconds(even(1, 100_000)) - weights
    hundred_short = law.step_seconds(StepWork(1, 1, 100_000, 100 * 1000**2)) - weights
    assert one_long / hundred_short > 1.2


def test_prefill_attention_grows_with_what_came_before() -> None:
    """The same chunk deep in a long prompt takes longer."""
    law = Physics.realistic(H100, QWEN)
    assert law.step_seconds(StepWork(chunks=((2048, 98_000),))) > 2 * law.step_seconds(StepWork(chunks=((2048, 0),)))


def test_tensor_parallelism_adds_collectives_and_divides_the_reading() -> None:
    """Llama-3.1-70B on four H100s: faster than a quarter of the bandwidth, slower than without all-reduces."""
    model = MODELS["llama-3.1-70b"]
    four = Physics.realistic(H100, model, 4)
    free = replace(four, tensor_parallel=1)
    assert four.step_seconds(even(8, 2000)) > free.step_seconds(even(8, 2000))
    assert four.peak_bandwidth_bytes_per_second == 4 * H100.bandwidth_bytes_per_second


def test_the_compute_roof_shows_at_large_batches() -> None:
    """With tiny contexts a step of 2,048 sequences is bound by compute, not by reading the weights."""
    law = Physics.plain(H100, QWEN)
    assert law.step_seconds(even(2048, 1)) > 3 * law.step_seconds(even(1, 1))


@pytest.mark.parametrize("law", PRESETS)
@given(n=st.integers(1, 500), tokens=st.integers(0, 5000), more=st.integers(0, 100_000))
def test_a_step_never_gets_faster_with_more_tokens(law: Physics, n: int, tokens: int, more: int) -> None:
    """Monotone in the context of any batch."""
    base = StepWork(n, 1, n * tokens, n * tokens**2)
    longer = StepWork(n, 1, n * tokens + more, (n - 1) * tokens**2 + (tokens + more) ** 2)
    assert law.step_seconds(longer) >= law.step_seconds(base) > 0


@pytest.mark.parametrize("law", [PRESETS[0], PRESETS[1]])
@given(index=st.integers(0, len(CAPTURED_SIZES) - 2))
def test_a_step_never_gets_faster_with_a_larger_captured_batch(law: Physics, index: int) -> None:
    """Monotone in the batch from one captured size to the next (between them padding shrinks)."""
    small, large = CAPTURED_SIZES[index], CAPTURED_SIZES[index + 1]
    assert law.step_seconds(even(large, 1000)) > law.step_seconds(even(small, 1000))


@given(n=st.integers(1, 2000))
def test_the_captured_size_is_the_next_one(n: int) -> None:
    """Never smaller than the batch; exactly the batch past the last captured size."""
    size = captured_size(n)
    assert size >= n
    assert size == n if n > 512 else size in CAPTURED_SIZES


def test_meaningless_parameters_are_refused_by_name() -> None:
    """The text names the field."""
    with pytest.raises(ValueError, match="bandwidth_share"):
        replace(PRESETS[0], bandwidth_share=0.0)
    with pytest.raises(ValueError, match="weight_bytes"):
        replace(PRESETS[0], weight_bytes=-1.0)
