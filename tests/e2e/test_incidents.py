"""Four incidents at once, on simulated engines: what does the person on call receive?

Simulated vLLM servers, real sidecars, a real Prometheus with the shipped rules and a real Alertmanager with the shipped
routing, all durations divided by ten. Beside the four engines in trouble stand one that is well and one that is idle.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from e2e import stage
from e2e.stage import Note, Webhook, wait_until
from shared_data import REPOSITORY
from stepscope.sim.build import build_config
from stepscope.sim.scenario import AGENTS, BURSTS, CHATS, Group, Phase, Scenario
from stepscope.sim.server import SimServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

# What an operator would know: model, GPU, promise, and a calibration of it. 60 % of an H100's 3.35e12 bytes/s;
# 2 x 8.19e9 FLOP per prompt token at 64.5 % of 989e12 FLOP/s. None of the simulator's extra terms.
FACTS = (
    "--model.id=Qwen/Qwen3-8B",
    "--hardware.gpu=H100-SXM",
    "--objective.tokens-per-second=50",
    "--calibration.effective-bandwidth-bytes-per-second=2.01e12",
    "--calibration.prefill-cost-seconds-per-token=2.57e-5",
)
CALM_SECONDS, TROUBLE_SECONDS = 25.0, 55.0  # before anything happens; how long it lasts (nine minutes, divided)
PROMPTS = replace(BURSTS, count=3, think_seconds=0.3)  # long prompts, short answers, few tokens in flight
FIRES_WITHIN_SECONDS, RESOLVES_WITHIN_SECONDS = 70.0, 120.0
ALERTS = {
    "over budget": "StepscopeOverBudget",
    "drift": "StepscopePredictionDrift",
    "prefill": "StepscopePrefillInterference",
    "down": "StepscopeEngineDown",
}
# What must be readable: values with units, by how much, and what to do.
TEXTS = {
    "over budget": r"Engine 0 was over its token budget for [\d.]+% of the last 5 minutes\. "
    r"Predicted decode step [\d.]+ms against a target of 18ms\. [\d.]+k tokens in flight(, [\d.]+k more than fit)?\. "
    r"They are held by \d+ decoding requests with [\d.]+k tokens each on average\.( Main cause: [a-z ]+\.)?",
    "drift": r"Engine 0 is [\d.]+% slower than its load explains, over the last 5 minutes\. "
    r"Mean ITL [\d.]+ms, predicted [\d.]+ms with prefill\. Parameters from: file\. Look for .+",
    "prefill": r"Prompt chunks slowed engine 0 for [\d.]+% of the last 5 minutes\. "
    r"Mean ITL [\d.]+ms against a target of 20ms, although the decode step alone needs only [\d.]+ms\. "
    r"Share of prefill in it: [\d.]+%\. KV cache usage: [\d.]+%\. "
    r"Lower --max-num-batched-tokens, .+",
    "down": r"The engine answered before and does not any more\. Last good page [\dms .]+ ago\. "
    r"Scrapes end with: connection\.",
}


@dataclass(frozen=True, slots=True)
class Play:
    """What arrived, and which sidecar stood beside which engine."""

    notes: tuple[Note, ...]
    instances: dict[str, str]

    def of(self, engine: str) -> list[Note]:
        """Notifications about one engine."""
        return [note for note in self.notes if note.instance == self.instances[engine]]


def _scenario(*trouble: Group) -> Scenario:
    calm = Phase("calm", CALM_SECONDS, (CHATS,))
    return Scenario((calm, Phase("trouble", TROUBLE_SECONDS, (CHATS, *trouble)), replace(calm, name="after")))


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Start everything, cause the trouble, wait for the alerts and their resolution."""
    folder: Path = tmp_path_factory.mktemp("e2e")
    scenarios = {
        "over budget": _scenario(AGENTS),
        "drift": _scenario(),
        "prefill": _scenario(PROMPTS),
        "down": _scenario(),
        "well": _scenario(),
        "idle": None,
    }
    with contextlib.ExitStack() as stack:
        webhook = Webhook()
        stack.callback(webhook.close)
        routing = stack.enter_context(stage.alertmanager(folder, webhook.url))
        simulators = {
            name: SimServer(build_config("qwen3-8b", "H100-SXM", "well-behaved"), scenario=scenario, seed=number)
            for number, (name, scenario) in enumerate(scenarios.items(), 1)
        }
        for simulator in simulators.values():
            simulator.start()
            stack.callback(simulator.stop)
        began = time.monotonic()
        instances = {
            name: stack.enter_context(stage.sidecar(folder, simulator.url, *FACTS))
            for name, simulator in simulators.items()
        }
        metrics = stack.enter_context(stage.prometheus(folder, list(instances.values()), routing))

        def engines_up() -> bool:
            answer = stage.get(f"{metrics}/api/v1/query", query="count(stepscope_engine_up == 1)")
            result = answer["data"]["result"] if answer else []
            return bool(result) and result[0]["value"][1] == str(len(instances))

        wait_until(engines_up, CALM_SECONDS, "every sidecar sees its engine and Prometheus every sidecar")

        def seen(status: str) -> set[tuple[str, str]]:
            return {(note.instance, note.name) for note in list(webhook.notes) if note.status == status}

        expected = {(instances[engine], alert) for engine, alert in ALERTS.items()}
        time.sleep(max(0.0, began + CALM_SECONDS - time.monotonic()))
        assert not webhook.notes, webhook.notes
        simulators["drift"].set_faults(throttle=1.35)
        simulators["down"].set_faults(restart=TROUBLE_SECONDS)
        wait_until(lambda: seen("firing") >= expected, FIRES_WITHIN_SECONDS, f"{expected} fire; {seen('firing')} did")
        time.sleep(max(0.0, began + CALM_SECONDS + TROUBLE_SECONDS - time.monotonic()))
        simulators["drift"].set_faults(throttle=1.0)
        wait_until(lambda: seen("resolved") >= expected, RESOLVES_WITHIN_SECONDS, "all of them resolve")
        received = [f"{n.receiver} {n.status} {n.name} {n.instance}: {n.annotations}" for n in webhook.notes]
        (folder / "notifications.txt").write_text("\n".join(received) + "\n", "utf-8")
        yield Play(tuple(webhook.notes), instances)


@pytest.mark.parametrize("engine", ALERTS)
def test_the_person_on_call_gets_exactly_the_right_alert_and_its_resolution(play: Play, engine: str) -> None:
    """One alert name, first firing, last resolved; engine-down goes to the pager, the others to the chat."""
    notes = play.of(engine)
    assert {note.name for note in notes} == {ALERTS[engine]}, [(note.status, note.name) for note in notes]
    statuses = [note.status for note in notes]
    assert (statuses[0], statuses[-1], statuses.count("resolved")) == ("firing", "resolved", 1)
    assert {note.receiver for note in notes} == {"pager" if engine == "down" else "chat"}


@pytest.mark.parametrize("engine", ALERTS)
def test_the_text_is_readable_and_has_values_with_units(play: Play, engine: str) -> None:
    """As asleep people need it; the runbook that it names exists."""
    note = next(note for note in play.of(engine) if note.status == "firing")
    assert re.fullmatch(TEXTS[engine], note.annotations["description"]), note.annotations["description"]
    assert note.instance in note.annotations["summary"]
    page = note.annotations["runbook_url"].rsplit("/", 1)[1]
    assert (REPOSITORY / "rules" / "runbooks" / page).is_file()
    assert note.annotations["dashboard_url"].endswith(note.instance.replace(":", "%3A"))


@pytest.mark.parametrize("engine", ["well", "idle"])
def test_nobody_hears_of_an_engine_that_is_well(play: Play, engine: str) -> None:
    """Not while its neighbours are in trouble either."""
    assert play.of(engine) == []


def test_every_notification_is_about_one_of_the_engines(play: Play) -> None:
    """No alert without an instance, none about anything else."""
    assert {note.instance for note in play.notes} == {play.instances[engine] for engine in ALERTS}


def test_an_engine_that_is_down_silences_the_rest_of_its_instance_and_nothing_else(tmp_path: Path) -> None:
    """The shipped inhibition, asked of a real Alertmanager."""

    def alert(name: str, **labels: str) -> dict[str, object]:
        return {"labels": {"alertname": name, "severity": "warning", **labels}}

    webhook = Webhook()
    with contextlib.closing(webhook), stage.alertmanager(tmp_path, webhook.url) as url:
        alerts = [
            alert("StepscopeEngineDown", instance="a", job="j"),
            alert("StepscopeOverBudget", instance="a", job="j", model_name="m", engine="0"),
            alert("StepscopeOverBudget", instance="b", job="j", model_name="m", engine="0"),
            alert("StepscopeAbsent", namespace="n", pod="p"),
            alert("SomethingElse", instance="a"),
        ]
        assert stage.post(f"{url}/api/v2/alerts", alerts) == 200

        def inhibited() -> dict[tuple[str, str], bool]:
            return {
                (one["labels"]["alertname"], one["labels"].get("instance", "")): bool(one["status"]["inhibitedBy"])
                for one in stage.get(f"{url}/api/v2/alerts") or []
                if one["status"]["state"] != "unprocessed"
            }

        wait_until(lambda: len(inhibited()) == len(alerts), 30, "Alertmanager has looked at all alerts")
        assert inhibited() == {
            ("StepscopeEngineDown", "a"): False,
            ("StepscopeOverBudget", "a"): True,
            ("StepscopeOverBudget", "b"): False,
            ("StepscopeAbsent", ""): False,
            ("SomethingElse", "a"): False,
        }
