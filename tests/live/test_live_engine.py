"""A real vLLM under load, the real sidecar beside it, the clients' own clocks as the judge. Nothing is calibrated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from live import drive
from live.client import get_json
from live.engine import Engine
from live.report import held
from live.sidecar import Sample, own_environment
from stepscope import engines
from stepscope.runtime.scrape import ScrapeOptions, Scraper

if TYPE_CHECKING:
    from live.conftest import Run

# The engine's start and the whole run fall to the first test that needs them.
pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]


def check(engine: Engine, *flags: str) -> subprocess.CompletedProcess[str]:
    """`stepscope check` as an operator runs it."""
    command = [sys.executable, "-m", "stepscope", "check", f"--engine.url={engine.url}", "--sample.interval=1s"]
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, env=own_environment())


def test_check_finds_everything_the_engine_can_say(engine: Engine, hardware: list[str]) -> None:
    """Version, capacity from the engine's own label, and the model's facts in the folder that /v1/models names."""
    done = check(engine, "--json", *hardware)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], report["last_error"]) == (0, True, None), done.stdout + done.stderr
    assert report["engine_version"] == get_json(engine.url, "/version")["version"]
    served = get_json(engine.url, "/v1/models")["data"][0]
    assert report["engines"][0]["model_name"] == served["id"]
    assert report["assumed"]["model"]["model"] == served["root"]
    assert report["engines"][0]["capacity_source"] == "label"
    assert report["engines"][0]["capacity_tokens"] == engine.pool().capacity_tokens


def test_check_reads_the_model_that_the_shared_script_makes(engine: Engine, hardware: list[str]) -> None:
    """2 GiB of KV at 2 x 8 layers x 8 heads x 64 x 4 bytes a token are 65,536 tokens; everything is in float32."""
    if engine.log is None or {"MODEL_ARGS", "KV_GIB"} & set(os.environ):
        pytest.skip("the engine was not started here with the script's defaults")
    report = json.loads(check(engine, "--json", *hardware).stdout)
    assert report["engines"][0]["capacity_tokens"] == 2 * 2**30 / (2 * 8 * 8 * 64 * 4) == 65_536
    model = report["assumed"]["model"]
    assert (model["kv_bytes_per_token"], model["kv_dtype"], model["attention"]) == ("32768", "float32", "mha")


def test_check_tells_a_person_what_is_missing(engine: Engine) -> None:
    """Without the hardware nothing can be predicted: exit 1, and the flag that helps is named."""
    done = check(engine)
    assert done.returncode == 1
    assert re.search(r"MISSING +GPU: give --hardware\.gpu", done.stdout)
    assert f"KV capacity {engine.pool().capacity_tokens:,} tokens (the engine's own figure)" in done.stdout
    assert "NO step can be predicted" in done.stdout


def test_the_engine_filters_its_page_for_us(engine: Engine) -> None:
    """All wanted names come back, and little else: at most a fifth of the whole page (histogram buckets are long)."""
    scraper = Scraper(ScrapeOptions(engine.url, deadline_seconds=10.0))
    try:
        whole = scraper.fetch(None)
        reading = engines.read(whole.text, whole.at_seconds)
        assert reading is not None
        part = scraper.fetch(reading.names)
    finally:
        scraper.close()
    assert (whole.filtered, part.filtered) == (False, True)
    again = engines.read(part.text, part.at_seconds)
    assert again is not None
    assert again.names == reading.names
    assert part.content_bytes < 0.2 * whole.content_bytes


def test_the_sidecar_asks_for_the_whole_page_once(engine: Engine, run: Run) -> None:
    """The engine's access log: one whole page to learn the names, then filtered ones only."""
    if engine.log is None:
        pytest.skip("the access log of an engine that was not started here is out of reach")
    text = engine.log.read_text()
    filtered = len(re.findall(r'"GET /metrics/\?name%5B%5D=\S+ HTTP/1.1" 200', text))
    assert filtered >= run.record.samples[-1].number - 1


def test_no_sample_is_lost_and_nothing_is_logged_in_anger(run: Run) -> None:
    """One good scrape a second, over the whole run; a clean end on SIGTERM."""
    samples = run.record.samples
    seconds = samples[-1].at - samples[0].at
    assert run.record.errors == []
    assert samples[-1].number - samples[0].number >= 0.9 * seconds / drive.INTERVAL_SECONDS
    assert run.record.exit_status == 0
    assert not re.search(r"ERROR|Traceback", run.record.log), run.record.log


def test_the_mean_is_what_the_clients_saw(run: Run) -> None:
    """5 % in every window, 1 % in the middle: the clients' side includes the frontend's delay, which mostly cancels.

    What the machine does to the engine, it does to both sides: the gaps compared are the same gaps. Only where a window
    ends between two tokens is not known better than the page's way took; within that, the client's nearest counts.
    """
    off = [
        (t.sample.at, span.deviation(t.view["itl_mean_seconds"]))
        for t in run.truths
        if (span := t.itl_mean_seconds) is not None
    ]
    assert len(off) >= 20
    assert [row for row in off if abs(row[1]) > 0.05] == []
    assert median(abs(deviation) for _, deviation in off) < 0.01


def test_the_batch_is_what_the_clients_saw(run: Run) -> None:
    """3 % in steps, or the steps that gave nobody a gap: at most one for each first token, and one at either edge."""
    compared = 0
    for truth in run.truths:
        if truth.steps is None or truth.batch is None:
            continue
        allowed = max(0.03 * truth.steps.best, truth.first_tokens + 1)
        assert truth.steps.low - allowed <= truth.our_steps <= truth.steps.high + allowed, truth
        if not truth.first_tokens:
            assert abs(truth.batch.deviation(truth.view["decode_batch_size"])) <= 0.03, truth
            compared += 1
    assert compared >= 5


def test_tokens_in_flight_are_what_the_clients_held(run: Run) -> None:
    """3 % of the blocks that the clients' tokens fill; between truth and truth plus a block each, without rounding."""
    compared = 0
    for truth in run.truths:
        if truth.tokens is None or truth.held_tokens is None:
            continue
        ours = held(truth, run.pool)
        assert abs(truth.held_tokens.deviation(ours)) <= 0.03, truth
        assert ours >= 0.97 * truth.tokens.low, truth
        compared += 1
    assert compared >= 20


def test_an_engine_without_requests_is_idle(run: Run) -> None:
    """Before the first request, and from three samples after everybody hung up: no verdict, nothing measured."""
    quiet = run.record.samples_in(drive.IDLE) + run.record.samples_in(drive.CANCELLED, after_seconds=3.0)
    assert len(quiet) >= 8
    assert {sample.view["state"] for sample in quiet} == {"idle"}
    assert {sample.view["tokens_in_flight"] for sample in quiet} == {0.0}
    assert all(sample.view["itl_mean_seconds"] is None and sample.view["cause"] is None for sample in quiet)


def test_it_warms_up_before_it_judges(run: Run) -> None:
    """No verdict in the first seconds or before 50 observations, whichever is later."""
    first = run.record.samples[0].at
    young = [s for s in run.record.samples if s.at - first < drive.WARM_UP_SECONDS]
    assert {s.view["state"] for s in young} <= {"idle", "warming_up"}
    assert all(s.view["drift_ratio"] is None for s in young)


def test_steady_streams_are_measured(run: Run) -> None:
    """Eight chats that all decode for longer than a window: judged, with drift, in every sample after that."""
    steady = run.record.samples_in(drive.CHATS)[-2:]
    assert [s.view["state"] for s in steady] == ["measuring", "measuring"]
    for sample in steady:
        assert (sample.view["requests_decoding"], sample.view["requests_prefilling"]) == (8.0, 0.0)
        assert sample.view["drift_ratio"] is not None


def test_a_long_prompt_is_seen_while_it_is_computed(run: Run) -> None:
    """While 6,000 tokens are computed beside eight chats, one request is in prefill.

    When chunks have filled more than a third of a window, and until it has passed, nothing is judged but prefill.
    """
    joiner = run.record.joiner
    assert joiner is not None
    assert joiner.arrivals
    begun, first = joiner.started, joiner.arrivals[0]
    inside = [s for s in run.record.samples if begun + 1.5 < s.earliest and s.latest < first - 0.5]
    filled = [s for s in inside if s.earliest > begun + 0.5 * drive.WINDOW_SECONDS]
    if not filled:
        pytest.skip(f"the engine computed the prompt in {first - begun:.1f} s, too soon to be caught at it")
    assert {s.view["requests_prefilling"] for s in inside} == {1.0}
    assert {s.view["requests_decoding"] for s in inside} == {8.0}
    assert {(s.view["state"], s.view["cause"]) for s in filled} == {("prefilling", "prefill")}


def test_the_metrics_page_says_what_the_snapshot_says(run: Run) -> None:
    """Every sample in which both were read of the same scrape: the series of this comparison, value by value."""
    compared = 0
    for sample in run.record.samples:
        series = page_of(sample)
        if series["stepscope_engine_scrapes_total", frozenset({("outcome", "ok")})] != sample.number:
            continue
        compared += 1
        labels = frozenset({("model_name", sample.view["model_name"]), ("engine", sample.view["engine"])})
        for name, key in (
            ("tokens_in_flight", "tokens_in_flight"),
            ("decode_batch_size", "decode_batch_size"),
            ("itl_mean_seconds", "itl_mean_seconds"),
            ("kv_cache_capacity_tokens", "capacity_tokens"),
            ("predicted_step_seconds", "predicted_step_seconds"),
        ):
            assert series.get((f"stepscope_{name}", labels)) == sample.view[key], (name, sample.at)
        assert series["stepscope_state", labels | {("state", sample.view["state"])}] == 1.0
    assert compared >= 0.5 * len(run.record.samples)


def page_of(sample: Sample) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The series of the sidecar's page by name and labels, as the Prometheus client reads them."""
    return {
        (row.name, frozenset(row.labels.items())): row.value
        for family in text_string_to_metric_families(sample.page)
        for row in family.samples
    }
