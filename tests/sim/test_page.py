"""The page is the recorded page, name for name, label for label, bucket for bucket."""

from __future__ import annotations

import gzip
import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.utils import floatToGoString

from shared_data import shared_path
from sim_helpers import samples, small, value
from stepscope.sim.cohort import Request
from stepscope.sim.page import go_float
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scenario import SCENARIOS
from stepscope.sim.simulation import Simulation, run_simulated


def recorded(tape: str) -> str:
    """The last page of a tape: all its series exist."""
    with gzip.open(shared_path("data", "tapes", f"{tape}.jsonl.gz"), "rt") as lines:
        pages = [row["body"] for row in map(json.loads, lines) if row.get("body")]
    return str(pages[-1])


def shape(page: str) -> list[tuple[str, tuple[str, ...], str | None]]:
    """(name, label keys, le) of every sample, in the page's order."""
    return [(name, tuple(labels), labels.get("le")) for name, labels, _ in samples(page)]


def comments(page: str) -> list[str]:
    """HELP and TYPE lines."""
    return [line for line in page.splitlines() if line.startswith("#")]


def page_of(config: EngineConfig) -> str:
    """A page after some load."""
    return run_simulated(config, SCENARIOS["steady"], 2.0).page_text() or ""


@pytest.mark.parametrize("tape", ["agents_join", "ngram"])
def test_the_page_has_the_recorded_names_labels_and_buckets(tape: str) -> None:
    """With and without speculative decoding; same order, HELP and TYPE lines included."""
    real = recorded(tape)
    ours = page_of(small(draft_tokens=3, draft_acceptance=0.9) if tape == "ngram" else small())
    assert comments(ours) == comments(real)
    assert shape(ours) == shape(real)
    assert ours.endswith("\n")
    names = {name for name, _, _ in samples(real)}
    assert len(names) > 100


def test_label_values_that_mean_something_are_the_recorded_ones() -> None:
    """Sources, reasons, sleep states: every value but those of the deployment itself."""

    def values(page: str) -> set[tuple[str, str, str]]:
        skip = {"engine", "model_name", "le"}
        return {
            (name, key, text)
            for name, labels, _ in samples(page)
            for key, text in labels.items()
            if name.startswith("vllm:") and key not in skip and name != "vllm:cache_config_info"
        }

    assert values(page_of(small())) == values(recorded("agents_join"))


def test_the_template_holds_no_value_of_the_recording() -> None:
    """A fresh engine shows zeros; only facts about the process, the cache and start times are not 0."""
    fresh = Simulation(small()).page_text() or ""
    allowed = ("process_", "python_info", "vllm:cache_config_info")
    nonzero = {n for n, labels, v in samples(fresh) if v and not n.endswith("_created") and not n.startswith(allowed)}
    assert nonzero == {"vllm:engine_sleep_state"}
    assert "tiny-llama" not in fresh
    assert "@" not in fresh


def test_histograms_are_cumulative_and_end_in_their_count() -> None:
    """Every bucket is at least the one before it."""
    page = page_of(small())
    series: dict[str, list[float]] = {}
    counts: dict[str, float] = {}
    for name, _, number in samples(page):
        if name.endswith("_bucket"):
            series.setdefault(name.removesuffix("_bucket"), []).append(number)
        elif name.endswith("_count"):
            counts[name.removesuffix("_count")] = number
    for name, buckets in series.items():
        assert buckets == sorted(buckets)
        assert buckets[-1] == counts[name]
    assert counts["vllm:inter_token_latency_seconds"] > 1000


def test_data_parallel_engines_stand_side_by_side_on_one_page() -> None:
    """As in vLLM num_gpu_blocks is summed over the engines while kv_cache_size_tokens is per engine."""
    config = small(data_parallel=3)
    page = page_of(config)
    running = [labels["engine"] for name, labels, _ in samples(page) if name == "vllm:num_requests_running"]
    assert running == ["0", "1", "2"]
    infos = [labels for name, labels, _ in samples(page) if name == "vllm:cache_config_info"]
    assert [info["engine"] for info in infos] == ["0", "1", "2"]
    assert {info["num_gpu_blocks"] for info in infos} == {str(3 * config.num_gpu_blocks)}
    assert {info["kv_cache_size_tokens"] for info in infos} == {str(config.num_gpu_blocks * 16)}
    assert len([name for name, _, _ in samples(page) if name == "vllm:admission_rejections_total"]) == 2
    assert page.count("# TYPE vllm:num_requests_running ") == 1


def test_a_model_name_with_quotes_stays_one_label() -> None:
    """Escaped as the format wants."""
    page = Simulation(small(model_name='a"b\\c')).page_text() or ""
    assert 'vllm:num_requests_running{engine="0",model_name="a\\"b\\\\c"} 0.0\n' in page


FILTERS = [
    {"vllm:prompt_tokens_total"},
    {"vllm:prompt_tokens"},
    {"vllm:prompt_tokens_created"},
    {"vllm:iteration_tokens_total_count", "vllm:inter_token_latency_seconds_sum"},
    {"vllm:inter_token_latency_seconds"},
    {"vllm:inter_token_latency_seconds_bucket", "vllm:inter_token_latency_seconds_created", "nonsense"},
    {"vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:prompt_tokens_created"},
    {"nonsense"},
]


@pytest.mark.parametrize("names", FILTERS, ids=lambda names: "+".join(sorted(names)))
def test_the_filter_keeps_what_prometheus_client_keeps(names: set[str]) -> None:
    """Sample names only; a family name gives nothing; the real library is the judge."""
    registry = CollectorRegistry()
    labels = ["model_name", "engine"]
    itl_bounds = [
        float(le)
        for name, _, le in shape(Simulation(small()).page_text() or "")
        if name == "vllm:inter_token_latency_seconds_bucket" and le is not None
    ]
    ours = Simulation(small())
    page = ours.page_text() or ""

    def help_of(name: str) -> str:
        return next(c.split(" ", 3)[3] for c in comments(page) if c.startswith(f"# HELP {name} "))

    for metric in (
        Gauge("vllm:num_requests_running", help_of("vllm:num_requests_running"), labels, registry=registry),
        Counter("vllm:prompt_tokens", help_of("vllm:prompt_tokens_total"), labels, registry=registry),
        Histogram(
            "vllm:iteration_tokens_total",
            help_of("vllm:iteration_tokens_total"),
            labels,
            registry=registry,
            buckets=[1, 8],
        ),
        Histogram(
            "vllm:inter_token_latency_seconds",
            help_of("vllm:inter_token_latency_seconds"),
            labels,
            registry=registry,
            buckets=itl_bounds,
        ),
    ):
        metric.labels("m", "0")
    theirs = generate_latest(registry.restricted_registry(list(names))).decode()
    mine = ours.page_text(frozenset(names)) or ""
    assert sorted(comments(mine)) == sorted(comments(theirs))
    assert sorted(map(repr, shape(mine))) == sorted(map(repr, shape(theirs)))


def test_a_filtered_page_has_the_same_values() -> None:
    """And is small."""
    simulation = Simulation(small())
    simulation.submit(Request(100, 50))
    simulation.advance(2.0)
    whole = simulation.page_text() or ""
    part = simulation.page_text(frozenset({"vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"})) or ""
    assert value(part, "vllm:generation_tokens_total") == value(whole, "vllm:generation_tokens_total") == 50
    assert len(part) < 1000 < len(whole)


@pytest.mark.parametrize("number", [0, 1, 12.5, 999_999, 1_000_000, 1_234_567.25, 1.7e9, 1e21, 0.1, 3e-7])
def test_numbers_are_written_as_the_library_writes_them(number: float) -> None:
    """Go's exponent form from a million on."""
    assert go_float(number) == floatToGoString(number)  # type: ignore[no-untyped-call]  # the library has no types here
