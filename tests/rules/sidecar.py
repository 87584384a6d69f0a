"""What a sidecar publishes over time, as promtool's input series: all that the rules read, consistent in itself.

A timeline is a list of stretches: so many minutes in which one `Moment` holds. The counters run on from stretch to
stretch as the sidecar's would; gauges vanish with a stale marker where the sidecar leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from stepscope.metrics import CAUSES, OUTCOMES, PREFIX, STATES

STEP_SECONDS = 15  # how often Prometheus scrapes here
HOLD_SECONDS = 90  # gauges of a dead engine are held that long by default (docs/configuration.md)
STALE = "stale"
Value = float | str | None  # a number, the stale marker, or no sample at all


@dataclass(frozen=True, slots=True)
class Moment:
    """What holds for a stretch of time. Defaults: 40 chats on a healthy engine, below a budget of 134,000 tokens."""

    engine: Literal["up", "down", "starting", "no_metrics"] = "up"
    scrape: Literal["ok", "missed", "failed"] = "ok"  # missed: no sample; failed: Prometheus marks all series stale
    is_new_sidecar: bool = False  # counters begin at 0 again
    sidecar_knows_engine: bool = True  # False: it has not seen a good page yet
    state: str = "measuring"
    cause: str | None = "none"
    over_share: float = 0.0  # share of judged time over budget
    itl_mean_seconds: float | None = 0.0140
    predicted_itl_seconds: float = 0.0140
    predicted_step_seconds: float | None = 0.0138
    measured_step_seconds: float | None = 0.0138
    bound_low_seconds: float = 0.0120
    target_step_seconds: float | None = 0.018
    target_itl_seconds: float | None = 0.020
    usage_ratio: float = 0.21
    tokens: float = 80000.0
    speed_budget_tokens: float | None = 134000.0
    floor_seconds: float | None = 0.0082  # overhead and weights of the predicted step
    decoding: float = 40.0
    waiting: float = 0.0
    interference_ratio: float | None = 0.01
    ttft_seconds: float | None = 0.3
    target_ttft_seconds: float | None = 2.0
    compared_per_second: float = 2000.0  # while measuring: 40 sequences x 50 steps
    mismatch: float = 0.0
    bandwidth_share_ratio: float = 0.6
    source: str = "file"
    gpu: str = "H100-SXM"
    gpu_count: str = "1"
    config_ok: float = 1.0
    is_nan: bool = False  # every gauge is NaN, which the sidecar never publishes


GOOD = Moment()
IDLE = replace(
    GOOD,
    state="idle",
    cause=None,
    itl_mean_seconds=None,
    measured_step_seconds=None,
    predicted_step_seconds=0.0082,
    usage_ratio=0.0,
    tokens=0.0,
    decoding=0.0,
    interference_ratio=None,
    ttft_seconds=None,
)
WARMING = replace(GOOD, state="warming_up", cause=None)
DOWN = replace(GOOD, engine="down")
STARTING = replace(GOOD, engine="starting")
STALE_GAUGES = replace(GOOD, state="stale", cause=None, ttft_seconds=None)
NOT_JUDGED = ("stale", "asleep", "warming_up")

Timeline = tuple[tuple[float, Moment], ...]  # minutes, moment
Series = dict[str, list[Value]]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """One target with its engines' timelines. The process-level series follow the first engine."""

    engines: Mapping[str, Timeline]
    instance: str = "10.0.0.1:10094"
    model_name: str = "Qwen/Qwen3-8B"
    target: Mapping[str, str] = field(default_factory=lambda: {"job": "llm/stepscope"})
    begins_minutes: float = 0.0

    @classmethod
    def of(cls, *timeline: tuple[float, Moment], instance: str = "10.0.0.1:10094") -> Sidecar:
        """A sidecar with one engine."""
        return cls({"0": timeline}, instance=instance)


def series_of(sidecar: Sidecar) -> Series:
    """All series by selector, each with one value per step from minute 0 on."""
    target = {**sidecar.target, "instance": sidecar.instance}
    lead = round(sidecar.begins_minutes * 60 / STEP_SECONDS)
    out: Series = {}
    for number, (engine, timeline) in enumerate(sidecar.engines.items()):
        steps = [moment for minutes, moment in timeline for moment in _spread(minutes, moment)]
        labels = {**target, "model_name": sidecar.model_name, "engine": engine}
        _add(out, steps, labels, _counters, lead)
        _add(out, steps, labels, _gauges, lead)
        if number == 0:
            _add(out, steps, target, _process, lead)
    return out


def _spread(minutes: float, moment: Moment) -> list[Moment]:
    count = round(minutes * 60 / STEP_SECONDS)
    rest = replace(moment, is_new_sidecar=False)
    return [moment if at == 0 else rest for at in range(count)]


Rows = dict[tuple[str, tuple[tuple[str, str], ...]], Value]
_Fold = Callable[[list[Moment], int, Rows], Rows]


def _add(out: Series, steps: list[Moment], labels: Mapping[str, str], fold: _Fold, lead: int) -> None:
    """Fold the steps into rows and append them, with a stale marker where a row ends."""
    own: Series = {}
    previous: Rows = {}
    for at, moment in enumerate(steps):
        previous = fold(steps, at, previous)
        if moment.scrape == "missed":
            continue
        shown = {} if moment.scrape == "failed" else {_selector(key, labels): value for key, value in previous.items()}
        for selector in own.keys() | shown.keys():
            values = own.setdefault(selector, [])
            if selector in shown or values[-1] != STALE:
                values.extend([None] * (lead + at - len(values)))
                values.append(shown.get(selector, STALE))
    out.update({name: own[name] for name in sorted(own)})


def _selector(key: tuple[str, tuple[tuple[str, str], ...]], labels: Mapping[str, str]) -> str:
    pairs = {**labels, **dict(key[1])}
    return PREFIX + key[0] + "{" + ",".join(f'{name}="{value}"' for name, value in sorted(pairs.items())) + "}"


def _row(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(labels.items())


def _counters(steps: list[Moment], at: int, previous: Rows) -> Rows:
    moment = steps[at]
    if moment.engine == "starting" or (moment.engine != "up" and not moment.sidecar_knows_engine):
        return {}
    runs = moment.engine == "up" and previous != {} and not moment.is_new_sidecar
    seconds = STEP_SECONDS if runs else 0.0
    judged = 0.0 if moment.state in NOT_JUDGED or moment.state.startswith("no_") else seconds
    compared = seconds * moment.compared_per_second if moment.state == "measuring" else 0.0
    growth: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
        _row("judged_seconds_total"): judged,
        _row("over_budget_seconds_total"): judged * moment.over_share,
        _row("itl_observed_seconds_total"): compared * (moment.itl_mean_seconds or 0.0),
        _row("itl_expected_seconds_total"): compared * moment.predicted_itl_seconds,
        _row("itl_compared_total"): compared,
    }
    growth |= {_row("state_seconds_total", state=s): seconds if s == moment.state else 0.0 for s in STATES}
    growth |= {_row("slowdown_cause_seconds_total", cause=c): seconds if c == moment.cause else 0.0 for c in CAUSES}
    rows: Rows = {}
    for key, step in growth.items():
        before = 0.0 if moment.is_new_sidecar else previous.get(key, 0.0)
        assert isinstance(before, float)
        rows[key] = round(before + step, 6)
    return rows


def _gauges(steps: list[Moment], at: int, previous: Rows) -> Rows:
    moment = steps[at]
    if moment.engine != "up":
        back = 0  # scrapes since the engine was last up
        while back <= at and steps[at - back].engine != "up":
            back += 1
        held = back <= at and moment.sidecar_knows_engine and back * STEP_SECONDS <= HOLD_SECONDS
        return previous if held else {}
    m = moment
    rows: dict[tuple[str, tuple[tuple[str, str], ...]], float | None] = {
        _row("kv_cache_usage_ratio"): m.usage_ratio,
        _row("tokens_in_flight"): m.tokens,
        _row("tokens_per_sequence"): m.tokens / m.decoding if m.decoding else None,
        _row("requests", phase="decoding"): m.decoding,
        _row("requests", phase="waiting"): m.waiting,
        _row("itl_mean_seconds"): m.itl_mean_seconds,
        _row("ttft_mean_seconds"): m.ttft_seconds,
        _row("measured_step_seconds"): m.measured_step_seconds,
        _row("predicted_step_seconds"): m.predicted_step_seconds,
        _row("predicted_step_component_seconds", component="overhead"): None if m.floor_seconds is None else 0.0,
        _row("predicted_step_component_seconds", component="weights"): m.floor_seconds,
        _row("predicted_step_component_seconds", component="kv_cache"): 0.05,  # counts in no rule
        _row("predicted_step_bound_seconds", bound="low"): m.bound_low_seconds,
        _row("predicted_step_bound_seconds", bound="high"): 0.016,
        _row("target_step_seconds"): m.target_step_seconds,
        _row("target_itl_seconds"): m.target_itl_seconds,
        _row("target_ttft_seconds"): m.target_ttft_seconds,
        _row("prefill_interference_ratio"): m.interference_ratio,
        _row("token_budget_tokens", limit="speed"): m.speed_budget_tokens,
        _row("token_budget_tokens", limit="memory"): 377000.0,
        _row("token_headroom_tokens"): None if m.speed_budget_tokens is None else m.speed_budget_tokens - m.tokens,
        _row("calibration_info", source=m.source, id="qwen3-8b-h100"): 1.0,
        _row("calibration_mismatch"): m.mismatch,
        _row("bandwidth_share_of_peak_ratio"): m.bandwidth_share_ratio,
        _row(
            "hardware_info",
            gpu=m.gpu,
            count=m.gpu_count,
            peak_bandwidth_bytes_per_second="3.35e+12",
            peak_flops="9.89e+14",
            source="flag",
        ): 1.0,
    }
    nan = float("nan")
    return {key: nan if m.is_nan else value for key, value in rows.items() if value is not None}


def _process(steps: list[Moment], at: int, previous: Rows) -> Rows:
    moment = steps[at]
    outcome = {"up": "ok", "down": "connection", "starting": "connection", "no_metrics": "no_engine_metrics"}
    rows: Rows = {
        _row("build_info", version="0.1.0", revision="unknown", pythonversion="3.11"): 1.0,
        _row("config_ok"): moment.config_ok,
        _row("engine_up"): float(moment.engine == "up"),
        _row("engine_ever_up"): float(moment.engine != "starting" and moment.sidecar_knows_engine),
    }
    for name in OUTCOMES:
        key = _row("engine_scrapes_total", outcome=name)
        before = 0.0 if moment.is_new_sidecar else previous.get(key, 0.0)
        assert isinstance(before, float)
        rows[key] = before + (3.0 if name == outcome[moment.engine] else 0.0)  # a scrape of the engine every 5 s
    stamp = _row("engine_last_sample_timestamp_seconds")
    if moment.engine == "up":
        rows[stamp] = float(at * STEP_SECONDS)
    elif stamp in previous and not moment.is_new_sidecar:
        rows[stamp] = previous[stamp]
    return rows
