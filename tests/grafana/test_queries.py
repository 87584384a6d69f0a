"""Every query of the dashboards, against a real Prometheus that scraped a simulator's sidecar for a while."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from boards_on_disk import FILES, board, expressions, filled
from stage import Stage
from stepscope import settings as table
from stepscope.sim.scenario import Group, Phase, Scenario
from tools import require_tool

CHATS = Group("chat", count=40, prompt_tokens=1000, output_tokens=2000, aged=True)
BURSTS = Group("burst", count=6, prompt_tokens=8_000, output_tokens=8, think_seconds=0.5)
STORY = Scenario((Phase("40 chats", 12.0, (CHATS,)), Phase("prompt bursts", 60.0, (CHATS, BURSTS))))
STORY_SECONDS = 22.0
SETTLED_SECONDS = 7.0  # the warm-up of three seconds, and a window
CALIBRATION = {
    "parameters": {
        "effective_bandwidth_bytes_per_second": 2.01e12,  # 60 % of an H100's, as the simulator has it
        "prefill_cost_seconds_per_token": 2.37e-5,  # 2 x 7.57e9 / (0.645 x 989e12), as the simulator has it
    },
    "residuals": {"median_abs_error": 0.02, "samples": 12},
    "provenance": {"model": "Qwen/Qwen3-8B", "gpu": "H100-SXM", "gpu_count": 1},
}
ALWAYS_FIRING = {
    "groups": [
        {
            "name": "test",
            "rules": [{"alert": "StepscopeTest", "expr": "stepscope_engine_up == 1", "labels": {"severity": "none"}}],
        }
    ]
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Played:
    """A story that was scraped, and when it was."""

    stage: Stage
    start: float
    end: float

    def seconds_with_data(self, expr: str) -> set[int]:
        """Seconds of the story at which the query gives at least one series. Asserts that all values are finite."""
        series = self.stage.query_range(expr, self.start, self.end, 1.0)
        for one in series:
            assert all(math.isfinite(float(value)) for _, value in one["values"]), f"{expr}: {one['metric']}"
        return {round(at) for one in series for at, _ in one["values"]}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Two sidecars beside a busy engine, one of them calibrated, one beside an engine that is not there."""
    program = require_tool("prometheus")
    folder = tmp_path_factory.mktemp("stage")
    (folder / "calibration.yaml").write_text(yaml.safe_dump(CALIBRATION))
    (folder / "rules.yml").write_text(yaml.safe_dump(ALWAYS_FIRING))
    with Stage(folder) as stage:
        engine = stage.engine(STORY)
        stage.sidecar(engine.url, "chat-a")
        stage.sidecar(engine.url, "chat-b", (table.CALIBRATION_FILE, folder / "calibration.yaml"), namespace="other")
        stage.sidecar("http://127.0.0.1:9", "chat-c")
        stage.prometheus(program, 1, rules=folder / "rules.yml")
        start = time.time()
        time.sleep(STORY_SECONDS)
        yield Played(stage, start + SETTLED_SECONDS, time.time())


SITUATION = {
    "always": 0.9,
    "load": 0.8,
    "promise": 0.8,
    "measuring": 0.3,
    "calibrated": 0.9,
    "alerting": 0.8,
    "prefill": 0.2,
}
QUERIES = [(f"{name}: {where}", expr) for name in FILES for where, expr in expressions(board(name))]


@pytest.mark.parametrize(("where", "expr"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_query_has_data_in_the_situation_it_is_for(played: Played, where: str, expr: str) -> None:
    """For the share of the story in which its situation holds; with numbers that are finite."""
    from boards import queries  # found through boards_on_disk

    single = [value for value in vars(queries).values() if isinstance(value, queries.Query)]
    (when,) = {query.when for query in (*single, *queries.COMPONENTS) if query.expr == expr}
    seconds = played.seconds_with_data(filled(expr))
    assert len(seconds) >= SITUATION[when] * (played.end - played.start - 1.0)


def test_the_parts_sum_to_the_prediction_and_the_prediction_is_near_the_measurement(played: Played) -> None:
    """What the graphs show, for one pod, at the end of the first phase."""
    from boards import queries

    at = played.start + 2.0

    def value(query: queries.Query) -> float:
        (series,) = played.stage.query(filled(query.expr, pod="chat-a"), at)
        return float(series["value"][1])

    predicted = value(queries.PREDICTED)
    assert sum(value(part) for part in queries.COMPONENTS) == pytest.approx(predicted, rel=1e-6)
    assert value(queries.MEASURED) == pytest.approx(predicted, rel=0.15)


def test_variables_select(played: Played) -> None:
    """A pod, or nothing where there is no such pod."""
    from boards import queries

    at = played.end - 2.0
    shown = queries.ENGINES_SHOWN.expr
    assert [series["value"][1] for series in played.stage.query(filled(shown), at)] == ["2"]
    assert [series["value"][1] for series in played.stage.query(filled(shown, namespace="other"), at)] == ["1"]
    assert played.stage.query(filled(shown, pod="chat-x"), at) == []
    assert [series["value"][1] for series in played.stage.query(filled(queries.ENGINES_DOWN.expr), at)] == ["1"]


def test_the_fleet_names_the_engine_that_does_not_answer(played: Played) -> None:
    """It has no state of its own, and is the first that somebody looks for."""
    from boards import queries

    states = {
        series["metric"]["pod"]: series["metric"]["state"]
        for series in played.stage.query(filled(queries.TABLE_STATE.expr), played.end - 2.0)
    }
    assert states.keys() == {"chat-a", "chat-b", "chat-c"}
    assert states["chat-c"] == "not answering"


def test_a_bar_is_named_by_pod_or_else_by_instance(played: Played) -> None:
    """A Prometheus outside a cluster adds no pods."""
    from boards import queries

    bars = played.stage.query(filled(queries.WORST_HEADROOM.expr), played.end - 2.0)
    assert {series["metric"]["who"] for series in bars} == {"chat-a", "chat-b"}
    plain = queries.named('label_replace(vector(1), "instance", "host-1:10094", "", "")')
    (series,) = played.stage.query(plain, played.end - 2.0)
    assert series["metric"]["who"] == "host-1:10094"


def test_the_first_board_says_why_once_prompts_pour_in(played: Played) -> None:
    """The cause in the corner of the board is the one that the story has."""
    from boards import queries

    causes = [
        {series["metric"]["cause"] for series in played.stage.query(filled(queries.CAUSE_NOW.expr, pod="chat-a"), at)}
        for at in (played.start + 2.0, played.end - 2.0)
    ]
    assert causes == [{"none"}, {"prefill"}]
