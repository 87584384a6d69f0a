"""What the vLLM row makes of capacities, several engines on one page, and values that cannot be true."""

from __future__ import annotations

import pytest

from recorded_pages import agents_join
from stepscope.core.sample import EngineSample, Reading
from stepscope.engines.vllm import read
from vllm_pages import cache_config, histogram, line, minimal, page


def reading_of(text: str) -> Reading:
    reading = read(text, 12.5)
    assert reading is not None
    return reading


def one(text: str) -> EngineSample:
    (engine,) = reading_of(text).engines
    return engine


def test_engines_of_one_page_share_the_blocks_and_not_the_label() -> None:
    """`num_gpu_blocks` is summed over data-parallel engines, `kv_cache_size_tokens` is each one's own."""
    config = {"num_gpu_blocks": "4000", "block_size": "16", "kv_cache_size_tokens": "32000"}
    text = page(minimal("0"), minimal("1"), cache_config("0", **config), cache_config("1", **config))
    reading = reading_of(text)
    assert [e.engine for e in reading.engines] == ["0", "1"]
    assert [e.num_blocks for e in reading.engines] == [2000.0, 2000.0]
    assert [e.capacity_label_tokens for e in reading.engines] == [32_000.0, 32_000.0]
    assert reading.notes == ()


def test_a_config_line_of_one_engine_serves_the_others() -> None:
    """Some versions print it once; a config line alone makes no engine."""
    config = cache_config("0", num_gpu_blocks="4000", block_size="16")
    assert [e.num_blocks for e in reading_of(page(minimal("0"), minimal("1"), config)).engines] == [2000.0, 2000.0]
    assert [e.engine for e in reading_of(page(minimal("1"), config)).engines] == ["1"]


def test_a_capacity_label_that_contradicts_the_blocks_is_noted() -> None:
    """Hybrid models: the smallest group's block size is shown; the label is right."""
    config = cache_config(num_gpu_blocks="1000", block_size="4", kv_cache_size_tokens="64000")
    reading = reading_of(page(minimal(), config))
    assert reading.engines[0].capacity_label_tokens == 64_000.0
    assert "blocks x block_size 4000" in reading.notes[0]


@pytest.mark.parametrize("text", ["None", "", "0", "-1", "many", "inf", "nan"])
def test_an_unknown_capacity_is_none(text: str) -> None:
    """In each of the labels; the engine is read all the same."""
    labels = {"num_gpu_blocks": text, "kv_cache_size_tokens": text, "kv_cache_memory_bytes": text, "block_size": text}
    sample = one(page(minimal(), cache_config(**labels)))
    assert (sample.num_blocks, sample.capacity_label_tokens, sample.pool_bytes_label) == (None, None, None)
    assert sample.block_size is None
    assert sample.kv_usage == 0.25


def test_a_missing_engine_label_is_engine_0() -> None:
    """As before data parallelism; the config line joins by it."""
    text = page(minimal(""), cache_config("", kv_cache_size_tokens="1000"))
    sample = one(text)
    assert (sample.engine, sample.model_name, sample.capacity_label_tokens) == ("0", "m", 1000.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-0.39", "1.2", "much"])
def test_an_impossible_usage_is_dropped_and_counted(value: str) -> None:
    """For that engine alone; its other values and the other engine stand."""
    reading = reading_of(page(minimal("0", usage=value), minimal("1")))
    first, second = reading.engines
    assert (first.kv_usage, first.requests_running, second.kv_usage) == (None, 3.0, 0.25)
    assert reading.invalid_values == (("0", "kv_usage", 1),)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x"])
@pytest.mark.parametrize(
    ("name", "field"), [("num_requests_running", "requests_running"), ("generation_tokens_total", "generation_tokens")]
)
def test_impossible_gauges_and_counters_are_dropped_and_counted(name: str, field: str, value: str) -> None:
    """Negative, infinite, not a number, not readable."""
    reading = reading_of(page(line("vllm:kv_cache_usage_perc", "0.5"), line("vllm:" + name, value)))
    assert getattr(reading.engines[0], field) is None
    assert reading.invalid_values == (("0", field, 1),)


def test_an_engine_whose_every_value_is_invalid_is_still_an_engine() -> None:
    """It is there and talks nonsense; that is not the same as no engine."""
    sample = one(page(line("vllm:kv_cache_usage_perc", "NaN")))
    assert (sample.engine, sample.kv_usage) == ("0", None)


def test_a_wanted_line_with_broken_labels_is_counted() -> None:
    """Nobody can say whose it is, so it is booked to the first engine."""
    reading = reading_of(page(minimal(), 'vllm:num_requests_running{engine="0" 7.0\n'))
    assert reading.engines[0].requests_running == 3.0
    assert reading.invalid_values == (("0", "requests_running", 1),)


@pytest.mark.parametrize("bound", ["x", "NaN", ""])
def test_a_bucket_without_a_bound_is_no_bucket(bound: str) -> None:
    """The histogram's other buckets stand."""
    text = page(minimal(), line("vllm:inter_token_latency_seconds_bucket", "9", le=bound))
    seen = one(text).itl_seconds
    assert seen is not None
    assert [b for b, _ in seen.buckets] == [0.025, 0.05, float("inf")]


def test_a_histogram_of_zeros_is_invalid() -> None:
    """Some versions observe every gap as 0; no decode step takes less than 0.1 ms."""
    bare = line("vllm:kv_cache_usage_perc", "0.5")
    zeros = histogram("vllm:inter_token_latency_seconds", ((0.01, 1000.0),), 0.09)
    assert one(page(bare, *zeros)).itl_seconds is None
    assert one(page(bare, *histogram("vllm:inter_token_latency_seconds", ((0.01, 1000.0),), 0.11))).itl_seconds
    assert one(page(bare, *histogram("vllm:inter_token_latency_seconds", ((0.01, 0.0),), 0.0))).itl_seconds


def test_half_a_histogram_is_none() -> None:
    """A sum without its count says nothing."""
    assert one(page(minimal(), line("vllm:time_to_first_token_seconds_sum", "1"))).ttft_seconds is None


def test_the_steps_are_the_count_of_a_histogram_with_a_counter_s_name() -> None:
    """Neither its sum nor its buckets."""
    steps = histogram("vllm:iteration_tokens_total", ((1.0, 100.0), (8.0, 200.0)), 1500.0)
    assert one(page(minimal(), *steps)).engine_steps == 200.0


def test_every_recorded_page_is_read_without_a_complaint() -> None:
    """73 pages, none of them with an invalid value or a note."""
    readings = [reading_of(text) for _, text in agents_join()]
    assert len(readings) == 73
    assert all(not r.invalid_values and not r.notes and r.single_process for r in readings)
