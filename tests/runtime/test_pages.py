"""What stepscope answers to whom: health, configuration, JSON, and who may reload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from golden_snapshot import golden_snapshot
from stepscope.core.snapshot import Snapshot
from stepscope.errors import ConfigError
from stepscope.metrics import CAUSES, OUTCOMES, STATES
from stepscope.runtime.collector import SnapshotCollector, make_registry
from stepscope.runtime.http1 import Request, Response
from stepscope.runtime.pages import finite, make_routes, snapshot_json
from stepscope.runtime.state import State

BARE = Snapshot("1.0", "rev", "3.11")


class Site:
    """The routes over a state, with fixed clocks."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.state = State(snapshot)
        self.reloads = 0
        self.reload_error: Exception | None = None
        self.recalibrations = 0
        at = snapshot.engines[0].at_seconds if snapshot.engines else 0.0
        self.routes = make_routes(
            self.state,
            make_registry(SnapshotCollector(lambda: self.state.snapshot, lambda: at, 90.0)),
            self.config,
            self.reload,
            self.recalibrate,
            unix_clock=lambda: 2000.0,
            clock=lambda: at + 2.5,
        )

    def config(self) -> Mapping[str, Any]:
        return {"engine.url": {"value": "http://127.0.0.1:8000", "source": "default"}}

    def recalibrate(self) -> None:
        self.recalibrations += 1

    def reload(self) -> None:
        self.reloads += 1
        if self.reload_error is not None:
            raise self.reload_error

    def get(
        self,
        path: str,
        method: str = "GET",
        address: str = "127.0.0.1",
        query: Mapping[str, list[str]] | None = None,
        **headers: str,
    ) -> Response:
        request = Request(method, path, query or {}, {"host": "localhost", **headers}, address)
        return self.routes[method, path](request)

    def json(self, path: str) -> Any:
        response = self.get(path)
        assert response.content_type.startswith("application/json")
        return json.loads(response.body)


@pytest.fixture
def site() -> Site:
    return Site(golden_snapshot())


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_health_never_depends_on_the_engine(path: str) -> None:
    """A pod must not turn unready because its model still loads or its engine is gone."""
    for snapshot in (BARE, golden_snapshot(), replace(golden_snapshot(), engine_up=False)):
        assert Site(snapshot).get(path).status == 200


def test_metrics_are_served_in_the_format_asked_for(site: Site) -> None:
    """Text by default."""
    assert site.get("/metrics").content_type.startswith("text/plain; version=0.0.4")
    openmetrics = site.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_only_loopback_or_the_authenticated_may_reload(site: Site) -> None:
    """And no page of another site in a browser on this host."""
    assert site.get("/-/reload", "POST").status == 200
    assert site.get("/-/reload", "POST", "::1").status == 200
    assert site.get("/-/reload", "POST", "10.0.0.7").status == 403
    assert site.get("/-/reload", "POST", origin="http://evil.example").status == 403
    assert site.get("/-/reload", "POST", host="evil.example").status == 403
    assert site.reloads == 2


def test_recalibration_is_guarded_like_a_reload(site: Site) -> None:
    """It throws away what was learned: not for everybody on the network."""
    assert site.get("/-/recalibrate", "POST").status == 200
    assert site.get("/-/recalibrate", "POST", "10.0.0.7").status == 403
    assert site.get("/-/recalibrate", "POST", origin="http://evil.example").status == 403
    assert site.recalibrations == 1


def test_a_refused_reload_says_why(site: Site) -> None:
    """One line, and the old configuration stands."""
    site.reload_error = ConfigError("--sample.interval: too short")
    response = site.get("/-/reload", "POST")
    assert (response.status, response.body) == (
        500,
        b"not reloaded, the old configuration stands: --sample.interval: too short\n",
    )


def test_the_configuration_comes_with_what_is_assumed(site: Site) -> None:
    """What was given, what was guessed, what is missing."""
    found = site.json("/config")
    assert found["settings"]["engine.url"]["source"] == "default"
    assert found["assumed"]["law"]["source"] == "file"
    assert found["assumed"]["model"]["model"] == "tiny-llama"
    assert isinstance(found["assumed"]["missing"], list)


def test_the_snapshot_says_what_the_metrics_say(site: Site) -> None:
    """The same values under the same names, with the age of the sample."""
    found, view = site.json("/api/v1/snapshot"), golden_snapshot().engines[0]
    (engine,) = found["engines"]
    assert (found["engine_up"], engine["age_seconds"]) == (True, 2.5)
    assert "at_seconds" not in engine
    for name in (
        "tokens_in_flight",
        "itl_mean_seconds",
        "drift_ratio",
        "predicted_itl_seconds",
        "token_headroom_tokens",
    ):
        assert engine[name] == pytest.approx(getattr(view, name)), name
    assert set(engine["accounts"]["state_seconds"]) == set(STATES)
    assert set(engine["accounts"]["cause_seconds"]) == set(CAUSES)
    assert engine["accounts"]["invalid_values"] == {"kv_usage": 1}
    assert set(found["engine_scrapes"]) == set(OUTCOMES)


def test_json_never_holds_what_json_cannot_say(site: Site) -> None:
    """The median's last bucket ends at infinity: null."""
    view = replace(golden_snapshot().engines[0], itl_median_upper_bound_seconds=float("inf"))
    site.state.publish(replace(golden_snapshot(), engines=(view,)))
    body = site.get("/api/v1/snapshot").body
    assert b"Infinity" not in body
    assert b"NaN" not in body
    assert json.loads(body)["engines"][0]["itl_median_upper_bound_seconds"] is None
    assert finite({"a": [float("nan"), (1.0, float("-inf"))]}) == {"a": [None, [1.0, None]]}


def test_before_the_first_sample_every_page_answers() -> None:
    """With nothing in it."""
    site = Site(BARE)
    for method, path in site.routes:
        assert site.get(path, method).status == 200, path
    assert site.json("/api/v1/history")["points"] == []
    assert snapshot_json(BARE, 0.0)["engines"] == []
    assert site.json("/config")["assumed"]["law"] is None


def test_the_history_is_that_of_the_last_minutes(site: Site) -> None:
    """By the clock of the request; `since` leaves out what the client has, `engine` the other engines."""
    for at in (1000.0, 1500.0, 1999.0):
        site.state.publish(golden_snapshot(), at)
    assert [p["time_unix_seconds"] for p in site.json("/api/v1/history")["points"]] == [1500.0, 1999.0]
    since = json.loads(site.get("/api/v1/history", query={"since": ["1500.0"]}).body)
    assert [p["time_unix_seconds"] for p in since["points"]] == [1999.0]
    other = json.loads(site.get("/api/v1/history", query={"engine": ["7"]}).body)
    assert [p["engines"] for p in other["points"]] == [[], []]
    assert site.get("/api/v1/history", query={"since": ["soon"]}).status == 400


def test_the_live_page_is_html_and_stays_put(site: Site) -> None:
    """One document; what it may load is limited, whatever the engine says."""
    response = site.get("/")
    assert (response.status, response.content_type) == (200, "text/html; charset=utf-8")
    assert dict(response.headers)["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("cause", [None, *CAUSES])
def test_every_state_and_cause_can_be_shown(state: str, cause: str | None) -> None:
    """Also where numbers are missing."""
    bare = replace(golden_snapshot().engines[0], state=state, cause=cause, drift_ratio=None)
    empty = replace(bare, predicted=None, prefill_interference_ratio=None, tokens_in_flight=None)
    for view in (bare, empty):
        (engine,) = snapshot_json(replace(golden_snapshot(), engines=(view,)), 0.0)["engines"]
        assert (engine["state"], engine["cause"]) == (state, cause)
