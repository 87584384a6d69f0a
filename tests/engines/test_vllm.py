"""The vLLM row reads every spelling since 0.8 and drops what cannot be true."""

from __future__ import annotations

from typing import Any

import pytest

from recorded_pages import whole_page
from stepscope import engines
from stepscope.core.sample import EngineSample, Reading
from stepscope.engines.vllm import NAMES, PREFIXES, read
from stepscope.errors import NotMetricsError
from vllm_pages import VLLM_0_10_2, VLLM_0_33, cache_config, line, minimal, page, sources


def reading_of(text: str) -> Reading:
    reading = read(text, 12.5)
    assert reading is not None
    return reading


def one(text: str) -> EngineSample:
    (engine,) = reading_of(text).engines
    return engine


# canonical field -> (extra labels, where the sample says it); three fields make one histogram.
_SAID: dict[str, Any] = {
    "itl_sum": lambda s: s.itl_seconds.sum,
    "itl_count": lambda s: s.itl_seconds.count,
    "itl_bucket": lambda s: s.itl_seconds.buckets[0][1],
    "ttft_sum": lambda s: s.ttft_seconds.sum,
    "ttft_count": lambda s: s.ttft_seconds.count,
    "prompt_by_source": lambda s: s.prompt_tokens_computed,
    "prompt_tokens": lambda s: s.prompt_tokens_computed,
    "external_hits": lambda s: s.prefix_hits,
    "cache_config": lambda s: s.block_size,
    "sleep_state": lambda s: float(s.awake),
}
_LABELS = {
    "itl_bucket": {"le": "0.01"},
    "prompt_by_source": {"source": "local_compute"},
    "cache_config": {"block_size": "1"},
    "sleep_state": {"sleep_state": "awake"},
}
# What a histogram needs to be one, beside the line under test.
_COMPANY = {"itl_sum": ["itl_count"], "itl_count": ["itl_sum"], "itl_bucket": ["itl_sum", "itl_count"],
            "ttft_sum": ["ttft_count"], "ttft_count": ["ttft_sum"]}  # fmt: skip
SPELLINGS = [(field, spelling) for field, spellings in NAMES.items() for spelling in spellings]


def said(sample: EngineSample, field: str) -> Any:
    return _SAID[field](sample) if field in _SAID else getattr(sample, field)


def company(field: str, rank: int, prefix: str) -> str:
    lines = []
    for other in _COMPANY.get(field, []):
        lines.append(line(prefix + NAMES[other][min(rank, len(NAMES[other]) - 1)], "1.0"))
    return "".join(lines)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("field", "spelling"), SPELLINGS)
def test_every_spelling_is_read_under_every_prefix(field: str, spelling: str, prefix: str) -> None:
    """One line of each name, value 1."""
    sign = "" if field == "generation_tokens" else line(prefix + "generation_tokens_total", "7.0")
    rank = NAMES[field].index(spelling)
    sample = one(page(sign, company(field, rank, prefix), line(prefix + spelling, "1.0", **_LABELS.get(field, {}))))
    assert said(sample, field) == 1.0


@pytest.mark.parametrize(("field", "spellings"), [(f, s) for f, s in NAMES.items() if len(s) > 1])
@pytest.mark.parametrize("old_first", [True, False])
def test_the_newest_spelling_wins_and_nothing_is_added(field: str, spellings: tuple[str, ...], old_first: bool) -> None:
    """Versions between a renaming and a removal show both, in either order."""
    lines = [
        company(field, 0, "vllm:") + line("vllm:" + spellings[0], "0.5", **_LABELS.get(field, {})),
        company(field, 1, "vllm:") + line("vllm:" + spellings[1], "0.25", **_LABELS.get(field, {})),
    ]
    text = page(line("vllm:num_requests_running", "1.0"), *(reversed(lines) if old_first else lines))
    assert said(one(text), field) == 0.5
    names = reading_of(text).names
    assert "vllm:" + spellings[0] in names
    assert "vllm:" + spellings[1] not in names


def test_one_prefix_wins_where_a_page_has_two() -> None:
    """Ray's own exporter may repeat the engine's page."""
    text = page(minimal(), minimal().replace("vllm:", "ray_vllm_").replace("3.0", "30.0"))
    assert one(text).requests_running == 3.0


def test_an_old_name_is_noted_once() -> None:
    """So that an operator sees which are in use."""
    assert reading_of(page(minimal())).notes == ()
    (note,) = reading_of(page(line("vllm:gpu_cache_usage_perc", "0.5"))).notes
    assert note == "old name in use: vllm:gpu_cache_usage_perc (today kv_cache_usage_perc)"


def test_a_recorded_page_of_0_32_is_read() -> None:
    """The whole page as it came over the wire."""
    reading = reading_of(whole_page())
    (sample,) = reading.engines
    assert (sample.model_name, sample.engine, sample.awake) == ("tiny-llama", "0", True)
    assert (sample.requests_running, sample.capacity_label_tokens) == (8.0, 65_536.0)
    assert (sample.num_blocks, sample.block_size, sample.attention_block_size) == (512.0, 128.0, 128.0)
    assert (sample.pool_bytes_label, sample.kv_cache_dtype) == (2**31, "auto")
    assert sample.kv_usage is not None
    assert sample.kv_usage * 65_536 == pytest.approx(3848, abs=1)
    assert sample.itl_seconds is not None
    assert [bound for bound, _ in sample.itl_seconds.buckets][:4] == [0.01, 0.025, 0.05, 0.075]
    assert sample.itl_seconds.buckets[-1][1] == sample.itl_seconds.count
    assert sample.prompt_tokens_computed == sample.prefix_queries
    assert reading.single_process
    assert reading.at_seconds == 12.5
    assert (reading.invalid_values, reading.notes) == ((), ())


def test_the_page_filtered_by_its_own_names_reads_the_same() -> None:
    """What the server-side filter would leave: samples of these names, no comments."""
    whole = reading_of(whole_page())
    lines = whole_page().splitlines(keepends=True)
    filtered = "".join(text for text in lines if text.split("{")[0].split(" ")[0] in whole.names)
    assert len(filtered) < len(whole_page()) / 3
    assert reading_of(filtered) == whole


def test_pages_of_0_10_2_are_read() -> None:
    """Old names; `pid` series collapse to their maximum; prompt tokens less prefix hits; several processes."""
    reading = reading_of(VLLM_0_10_2)
    (sample,) = reading.engines
    assert (sample.requests_running, sample.requests_waiting, sample.kv_usage) == (5.0, 2.0, 0.4)
    assert sample.itl_seconds is not None
    assert (sample.itl_seconds.sum, sample.itl_seconds.count) == (8.0, 400.0)
    assert sample.prompt_tokens_computed == 900.0
    assert (sample.prefix_queries, sample.prefix_hits, sample.engine_steps) == (900.0, 100.0, 200.0)
    assert (sample.num_blocks, sample.capacity_label_tokens, sample.awake) == (2000.0, None, None)
    assert not reading.single_process
    assert any("pid" in note for note in reading.notes)


def test_custom_buckets_of_0_33_are_read_from_the_page() -> None:
    """The operator's own bounds."""
    histogram_seen = one(VLLM_0_33).itl_seconds
    assert histogram_seen is not None
    assert histogram_seen.buckets == (
        (0.002, 0.0), (0.004, 10.0), (0.006, 40.0), (0.0085, 48.0), (0.012, 50.0), (float("inf"), 50.0),
    )  # fmt: skip


def test_a_page_without_a_process_start_is_one_of_several_processes() -> None:
    """Steps are then counted once a process. A broken or absurd start is as good as none."""
    assert reading_of(page(minimal())).process_start_seconds == 1.7e9
    for process in ("", *(f"process_start_time_seconds {value}\n" for value in ("soon", "NaN", "+Inf", "-1"))):
        reading = reading_of(page(minimal(), process=process))
        assert (reading.single_process, reading.process_start_seconds) == (False, None)


def test_without_log_stats_there_is_no_engine() -> None:
    """The page is 200 and about Python and HTTP; with the config line alone it is no different."""
    assert read(page("python_info 1.0\n"), 0.0) is None
    assert read(page(cache_config(num_gpu_blocks="10")), 0.0) is None
    assert engines.read(page("python_info 1.0\n"), 0.0) is None


@pytest.mark.parametrize("foreign", ["tgi_request_count 5\n", 'sglang:num_running_reqs{model_name="m"} 2\n'])
def test_pages_of_other_servers_are_not_taken_for_vllm(foreign: str) -> None:
    """Until they have a row of their own."""
    assert engines.read(page(foreign), 0.0) is None


def test_what_is_no_page_is_an_error() -> None:
    """Handed on from the scan."""
    with pytest.raises(NotMetricsError):
        read("<html></html>\n", 0.0)
    with pytest.raises(NotMetricsError):
        read(minimal().rstrip("\n"), 0.0)


@pytest.mark.parametrize(("value", "awake"), [("1.0", True), ("0.0", False)])
def test_sleep_is_read(value: str, awake: bool) -> None:
    """From the state called awake; the other states say nothing of it."""
    states = line("vllm:engine_sleep_state", value, sleep_state="awake")
    others = line("vllm:engine_sleep_state", "1.0", sleep_state="discard_all")
    assert one(page(minimal(), others, states, others)).awake is awake
    assert one(page(minimal(), others)).awake is None


def test_only_locally_computed_prompt_tokens_count() -> None:
    """Cache hits and transfers cost no prefill; `prompt_tokens_total` would count them."""
    text = page(
        minimal(),
        line("vllm:prompt_tokens_total", "1000"),
        sources({"local_cache_hit": 600.0, "local_compute": 300.0, "external_kv_transfer": 100.0}),
    )
    assert one(text).prompt_tokens_computed == 300.0


def test_without_sources_prefix_hits_are_taken_off_and_never_below_zero() -> None:
    """Before 0.18."""
    prompt, hits = line("vllm:prompt_tokens_total", "100"), "vllm:prefix_cache_hits_total"
    assert one(page(minimal(), prompt)).prompt_tokens_computed == 100.0
    assert one(page(minimal(), prompt, line(hits, "30"))).prompt_tokens_computed == 70.0
    assert one(page(minimal(), prompt, line(hits, "300"))).prompt_tokens_computed == 0.0


def test_hits_behind_a_kv_connector_are_hits_and_not_prompts_left_open() -> None:
    """1,000 tokens were asked for: 300 found here, 600 came from elsewhere, 100 were computed."""
    lines = [
        line("vllm:prefix_cache_queries_total", "1000.0"),
        line("vllm:prefix_cache_hits_total", "300.0"),
        line("vllm:external_prefix_cache_hits_total", "600.0"),
    ]
    by_source = sources({"local_compute": 100, "local_cache_hit": 300, "external_kv_transfer": 600})
    sample = one(page(minimal(), *lines, by_source))
    assert (sample.prefix_queries, sample.prefix_hits, sample.prompt_tokens_computed) == (1000.0, 900.0, 100.0)
    before_0_18 = one(page(minimal(), *lines, line("vllm:prompt_tokens_total", "1000.0")))
    assert before_0_18.prompt_tokens_computed == 100.0


def test_created_times_and_adapters_never_enter_a_value() -> None:
    """Both are wall-clock times of about 1.7e9."""
    noise = "".join(line(f"vllm:{name}_created", "1.7e+09") for name in ("generation_tokens", "num_requests_running"))
    adapters = line("vllm:lora_requests_info", "1.7e+09", running_lora_adapters="a,b", max_lora="4")
    quiet, noisy = reading_of(page(minimal())), reading_of(page(noise, adapters, minimal(), adapters, noise))
    assert quiet == noisy
    assert not any("created" in name or "lora" in name for name in reading_of(whole_page()).names)
