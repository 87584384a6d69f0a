"""One measured load as a row: what fit reads, what the law says, and whether the client was too slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.assume import Given
from stepscope.core.bench_report import LoadAsked, Outcome, failures, row
from stepscope.core.engine_span import EngineSpan
from stepscope.core.estimate import Facts
from stepscope.core.hardware import Gpu
from stepscope.core.load_trace import Trace
from stepscope.core.model_spec import from_numbers
from stepscope.core.step_model import StepLaw
from stepscope.points import knows_bytes, machine_of, point_of, read_rows

MODEL = from_numbers(15.2e9, 147_456.0, 7.6e9, name="q")
LAW = StepLaw(MODEL.weights, 2e12, 147_456.0, prefill_cost_seconds_per_token=1e-5, source="file")
FACTS = Facts(law=LAW, model=MODEL)
GIVEN = Given(gpu=Gpu("H100-SXM", 3.35e12, 989e12, 1979e12, 80e9, "NVIDIA H100 data sheet"))
ASKED = LoadAsked("2x100", 2, 2, 100.0, 101)


def trace(outcome: str = "ok", label: str = "", gap: float = 0.01, tokens: int = 101) -> Trace:
    arrivals = tuple((1.0 + gap * number, number + 1.0) for number in range(tokens))
    return Trace(0.0, 100, arrivals, arrivals[-1][0] if arrivals else 2.0, outcome, label)


def engine(itl: float = 0.01, observations: float = 200.0, per_step: float = 1.0) -> EngineSpan:
    return EngineSpan(1.0, observations, itl, 2.0, 400.0, None, 5.0, per_step, 200.0, 100.0, 0.0, 0.0, 2.0, 0.0)


def made(
    *traces: Trace,
    span: EngineSpan | None = None,
    cpu: float = 0.1,
    price: float | None = None,
    late: float | None = None,
) -> dict[str, object]:
    outcome = Outcome(traces, (1.0, 2.0), 2.0, cpu, span, late)
    return row(ASKED, outcome, FACTS, GIVEN, family="vllm", price_per_hour=price)


def test_the_engines_own_figures_are_the_load() -> None:
    """And the law's answer to them stands beside what was measured."""
    found = made(trace(), trace(), span=engine(), price=3.6)
    assert (found["sequences"], found["tokens_in_flight"], found["prefill_tokens_per_step"]) == (2.0, 400.0, 5.0)
    predicted = (15.2e9 + 400 * 147_456) / 2e12 + 5 * 1e-5
    assert found["predicted_itl_seconds"] == pytest.approx(predicted)
    assert found["prediction_error"] == pytest.approx(predicted / 0.01 - 1.0)
    assert found["law_source"] == "file"
    # 202 tokens in two seconds at 3.6 an hour.
    assert found["cost_per_million_tokens"] == pytest.approx(1e6 * 0.001 * 2.0 / 202)
    assert found["client_bottleneck"] is None


def test_without_counters_the_clients_figures_are_the_load() -> None:
    """Sequences, tokens and the mean gap as it saw them."""
    found = made(trace(), trace())
    assert found["sequences"] == pytest.approx(2.0)
    assert found["tokens_in_flight"] == pytest.approx(2 * 150.5)
    assert found["itl_seconds"] == pytest.approx(0.01)
    assert found["engine_counters"] is None


def test_outcomes_are_counted_apart() -> None:
    """Requests that brought nothing take no part in the means."""
    found = made(trace(), trace("out_of_memory", tokens=0), trace("rejected", tokens=0))
    assert found["outcomes"] == {"ok": 1, "out_of_memory": 1, "rejected": 1}
    nothing = made(trace("connection", tokens=0))
    assert (nothing["itl_seconds"], nothing["ttft"], nothing["sequences"]) == (None, None, None)


@pytest.mark.parametrize(
    ("gap", "span", "cpu", "late", "says"),
    [
        (0.01, engine(), 1.8, 0.0001, "90% of the one core"),
        (0.01, engine(), 0.1, 0.0009, None),
        (0.01, None, 0.1, 0.002, "came 2 ms late to its tokens, 20% of the time between two"),
        (0.01, None, 0.1, 0.05, "5 times the time between two"),
        (0.012, engine(), 0.1, 0.0001, None),  # late on their way: another's fault
        (0.01, None, 0.1, None, None),
    ],
)
def test_a_client_that_was_the_bottleneck_is_said(
    gap: float, span: EngineSpan | None, cpu: float, late: float | None, says: str | None
) -> None:
    """By its share of a core, or by how late it came to run."""
    found = made(trace(gap=gap), trace(gap=gap), span=span, cpu=cpu, late=late)["client_bottleneck"]
    assert (says is None and found is None) or (says is not None and says in str(found))


@pytest.mark.parametrize(
    ("gap", "span", "cpu", "says"),
    [
        (0.012, engine(), 0.1, "20% further apart than the engine made them; not by this client"),
        (0.012, engine(), 1.9, "20% further apart than the engine made them"),
        (0.0105, engine(), 0.1, None),
        (0.012, engine(observations=20.0), 0.1, None),
        (0.01, engine(itl=0.02, per_step=2.0), 0.1, None),  # a step of two tokens
        (0.01, None, 0.1, None),
    ],
)
def test_tokens_that_were_late_on_their_way_are_said(
    gap: float, span: EngineSpan | None, cpu: float, says: str | None
) -> None:
    """Between the engine's step and this client; whose fault it is depends on whether the client was slow itself."""
    found = made(trace(gap=gap), trace(gap=gap), span=span, cpu=cpu, late=0.0001)
    assert (found["late_delivery"] is None) == (says is None)
    assert says is None or str(found["late_delivery"]).startswith(f"tokens came {says}")
    assert "not by this client" not in str(found["late_delivery"]) or found["client_bottleneck"] is None


@pytest.mark.parametrize(
    ("tokens", "says"),
    [((101, 101), None), ((101, 91), None), ((3, 3), "3 of 101 tokens"), ((101, 3), "52 of 101 tokens"), ((), None)],
)
def test_answers_shorter_than_asked_for_are_said(tokens: tuple[int, ...], says: str | None) -> None:
    """In the mean; of answers that ended well."""
    found = made(*(trace(tokens=count) for count in tokens), trace("cut", tokens=2))["short_answers"]
    assert (found is None) == (says is None)
    assert says is None or f"answers were shorter than asked for: {says}" in str(found)


def test_a_client_late_in_making_requests_is_not_late_to_tokens() -> None:
    """Short answers leave little time between tokens; a core that is used up is said all the same."""
    short, slow = trace(tokens=3), Trace(0.0, 100, ((8.0, 1.0), (9.0, 101.0)), 9.0)
    for one in (short, slow):
        assert made(one, one, late=0.009)["client_bottleneck"] is None
        assert "of the one core" in str(made(one, one, late=0.009, cpu=1.9)["client_bottleneck"])
    assert made(slow)["decode_time_share"] == pytest.approx(1 / 9)


def test_what_we_ended_ourselves_did_not_fail() -> None:
    """At the end of the time or after Ctrl-C."""
    assert failures({"ok": 3, "aborted": 2, "running": 1, "timeout": 1, "rejected": 4}) == 5


def test_classes_of_a_mix_have_their_own_speed() -> None:
    """Chats and agents apart; one class alone is not repeated."""
    found = made(trace(label="2000"), trace(label="100000", gap=0.02))["by_class"]
    assert isinstance(found, list)
    assert [(one["class"], round(one["tokens_per_second_per_user"])) for one in found] == [
        ("2000", 100),
        ("100000", 50),
    ]
    assert made(trace(label="a"), trace(label="a"))["by_class"] == []


def test_fit_reads_a_row_with_model_and_machine(tmp_path: Path) -> None:
    """By the names of the public collections."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(made(trace(), trace(), span=engine())) + "\n")
    rows = read_rows(path)
    assert knows_bytes(rows)
    point = point_of(rows[0], in_bytes=True)
    assert (point.weight_bytes, point.kv_bytes_per_token, point.itl_seconds) == (15.2e9, 147_456.0, 0.01)
    machine = machine_of(rows)
    assert machine is not None
    assert (machine.engine, machine.gpu, machine.gpus) == ("vllm", "H100-SXM", 1)
    assert (machine.peak_bandwidth_bytes_per_second, machine.peak_flops) == (3.35e12, 989e12)
