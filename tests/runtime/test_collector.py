"""What a scraper gets: formats, repeatability, hostile label values, expiry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from golden_snapshot import golden_snapshot, page_of
from stepscope.core.snapshot import Snapshot
from stepscope.runtime.collector import SnapshotCollector, make_registry, render

BARE = Snapshot("1.0", "rev", "3.11")
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"),
        (
            # What a Prometheus 2 server sends.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0",
        ),
    ],
)
def test_the_format_is_negotiated(accept: str, content_type: str) -> None:
    """A Content-Type is never blank, HTML or JSON: newer servers refuse those."""
    registry = make_registry(SnapshotCollector(golden_snapshot, lambda: 0.0, 90.0))
    body, given = render(registry, accept)
    assert given.startswith(content_type)
    parse = parse_openmetrics if "openmetrics" in given else parse_text
    assert {f.name for f in parse(body.decode())} >= {"stepscope_state", "stepscope_engine_up"}


def test_two_scrapes_are_the_same_page() -> None:
    """Families are built anew each time: nothing is doubled, nothing is changed by looking."""
    snapshot = golden_snapshot()
    registry = make_registry(SnapshotCollector(lambda: snapshot, lambda: snapshot.engines[0].at_seconds, 90.0))
    first, second = render(registry, ""), render(registry, "")
    assert first == second
    lines = first[0].decode().splitlines()
    assert len(set(lines)) == len(lines)


def test_registering_collects_nothing() -> None:
    """The library would otherwise ask for everything once to learn the names."""
    asked = []

    def current() -> Snapshot:
        asked.append(1)
        return BARE

    make_registry(SnapshotCollector(current, lambda: 0.0, 90.0))
    assert asked == []


def test_families_without_samples_are_not_announced() -> None:
    """No TYPE line for a series that is absent."""
    page = page_of(BARE)
    assert "stepscope_drift_ratio" not in page
    assert "# TYPE stepscope_engine_scrapes_total counter" in page


def test_an_engine_s_names_cannot_break_the_page() -> None:
    """Quotes, braces and line breaks of a model's name come back as they were."""
    nasty = 'a"b\\c\nstepscope_engine_up 7\n{}'
    view = replace(golden_snapshot().engines[0], model_name=nasty)
    page = page_of(replace(golden_snapshot(), engines=(view,)))
    states = next(f for f in parse_text(page) if f.name == "stepscope_state")
    assert {s.labels["model_name"] for s in states.samples} == {nasty}
    assert "\nstepscope_engine_up 7" not in page


def test_gauges_expire_and_counters_stand() -> None:
    """As the rows say; the hold may change at a reload."""
    fresh, old = page_of(golden_snapshot(), age_seconds=90.0), page_of(golden_snapshot(), age_seconds=91.0)
    assert "stepscope_tokens_in_flight{" in fresh
    assert "stepscope_tokens_in_flight{" not in old
    assert "stepscope_judged_seconds_total{" in old
    assert "stepscope_tokens_in_flight{" in page_of(golden_snapshot(), age_seconds=91.0, hold_seconds=120.0)
