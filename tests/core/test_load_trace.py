"""What a client knows of its own load."""

from __future__ import annotations

import pytest

from stepscope.core.load_trace import Trace, client_span, percentiles, steady_window


def trace(sent: float, first: float, gap: float, tokens: int, prompt: int = 100, label: str = "") -> Trace:
    arrivals = tuple((first + gap * number, number + 1.0) for number in range(tokens))
    return Trace(sent, prompt, arrivals, arrivals[-1][0], "ok", label)


def test_one_request_has_a_first_token_and_a_mean_gap() -> None:
    """TTFT from sending, TPOT without the first token."""
    one = trace(1.0, 3.0, 0.5, 5)
    assert (one.ttft_seconds, one.tpot_seconds, one.output_tokens) == (2.0, 0.5, 5.0)
    assert one.gaps_seconds == (0.5,) * 4
    empty = Trace(1.0, 100, (), 2.0, "timeout")
    assert (empty.ttft_seconds, empty.tpot_seconds, empty.output_tokens, empty.gaps_seconds) == (None, None, 0.0, ())


def test_tokens_of_one_event_share_its_gap() -> None:
    """A busy frontend puts the tokens of several steps into one event."""
    assert Trace(0.0, 10, ((1.0, 1.0), (1.6, 4.0)), 1.6).gaps_seconds == pytest.approx((0.2, 0.2, 0.2))


def test_the_window_is_where_the_whole_load_stood() -> None:
    """From the last first token to the first end that nobody follows."""
    traces = [trace(0.0, 1.0, 1.0, 20), trace(0.0, 2.0, 1.0, 4), trace(5.0, 6.0, 1.0, 10)]
    assert steady_window(traces, 2) == (2.0, 15.0)
    assert steady_window(traces[:1], 2) is None
    assert steady_window([trace(0.0, 1.0, 1.0, 2), trace(0.0, 9.0, 1.0, 2)], 2) is None


def test_means_are_taken_while_somebody_decodes() -> None:
    """Two streams of ten gaps each, the second one half as long; time without any does not count."""
    span = client_span([trace(0.0, 1.0, 1.0, 11), trace(0.0, 1.0, 1.0, 6, prompt=300)], 1.0, 100.0)
    assert span is not None
    assert (span.seconds, span.observations, span.itl_seconds) == (10.0, 15.0, 1.0)
    assert span.sequences == pytest.approx(1.5)
    # Mean of 101..110 over ten seconds, and of 301..305 over five of them.
    assert span.tokens_in_flight == pytest.approx(105.5 + 303.0 / 2.0)
    assert span.steps == pytest.approx(10.0)
    assert (span.prompts, span.prompt_tokens) == (0, 0.0)


def test_prompts_count_when_they_end_in_the_window() -> None:
    """As the engine books them; of the 1.2 that decode on the mean, 1.0 do while the prompt is computed."""
    span = client_span([trace(0.0, 1.0, 1.0, 11), trace(0.0, 5.0, 1.0, 3, prompt=40)], 1.0, 20.0)
    assert span is not None
    assert (span.prompts, span.prefill_tokens_per_step) == pytest.approx((1, 40.0 / 10.0 / 1.2))


def test_gaps_across_the_windows_edge_belong_to_where_they_end() -> None:
    """Their time counts for the load only inside."""
    span = client_span([trace(0.0, 0.0, 1.0, 11)], 2.5, 4.5)
    assert span is not None
    assert (span.observations, span.itl_seconds, span.sequences) == (2.0, 1.0, 1.0)
    assert client_span([trace(0.0, 0.0, 1.0, 11)], 50.0, 60.0) is None


def test_percentiles_need_values() -> None:
    """Mean, median, 90th and 99th."""
    assert percentiles([]) is None
    found = percentiles([float(n) for n in range(101)])
    assert found is not None
    assert (found.mean, found.p50, found.p90, found.p99) == (50.0, 50.0, 90.0, 99.0)
