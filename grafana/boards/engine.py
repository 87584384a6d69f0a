"""The board of one engine: predicted against measured, why, and how much more fits."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models import common as kinds

from boards import queries as q
from boards.frame import UIDS, frame
from boards.style import (
    AMBER,
    BLUE,
    CAUSE_COLOURS,
    COMPONENT_COLOURS,
    GREEN,
    INK,
    RED,
    STATE_COLOURS,
    Spot,
    colour,
    graph,
    lane,
    number,
    prop,
    prose,
    rows,
    thresholds,
    word,
)

DRIFT_LIMIT = 0.15  # the drift at which the verdict becomes "unexplained": stepscope.core.compare

HOW_TO_READ = """\
- **Slow?** *measured* is above *promised*
- **Against what?** *predicted* is what this load must take
- both below *promised*: fine
- both above *promised*: too much load; *Why* says which part
- *measured* above *predicted*: a fault outside the load

| Why | What to do |
|---|---|
| context | move or cap long sessions |
| load | add an engine, admit fewer requests |
| prefill | smaller chunks, move long prompts |
| unexplained | clocks, neighbours, CPU, logprobs |
| preemption | more KV memory, fewer requests |
| objective_ unreachable | promise less, faster GPUs |
"""


def build() -> dashboard.Dashboard:
    """The whole board."""
    board = frame(
        UIDS["engine"],
        "stepscope: predicted vs actual",
        "One engine: is the decode step as slow as physics says it must be, and if not, why.",
        several=False,
    )
    panels = [*_verdict(), *_prediction(), *_load(), *_basis()]
    for at, panel in enumerate(panels, start=1):
        board = board.with_row(panel) if isinstance(panel, dashboard.Row) else board.with_panel(panel.id(at))
    return board


def _verdict() -> list:  # type: ignore[type-arg]  # panels of several kinds share no type
    return [
        word(Spot(0, 0, 6, 4), "Why now", "The cause that stepscope names for the last window; 'none' means as fast "
             "as the load allows.", q.CAUSE_NOW, CAUSE_COLOURS, "not judged, see State"),
        number(Spot(6, 0, 4, 4), "Speed, of what was promised", "Speed of a user over the promised speed. Below 100% "
               "users get less than they were promised.", "percentunit", q.SPEED_OF_PROMISE,
               steps=((None, RED), (1.0, GREEN)), decimals=0),
        number(Spot(10, 0, 3, 4), "Measured", "Mean inter-token latency in the last window.", "s", q.MEASURED,
               decimals=1, empty="idle"),
        number(Spot(13, 0, 3, 4), "Predicted", "Inter-token latency that the load must cause: decode step and prompt "
               "chunks.", "s", q.PREDICTED, decimals=1),
        number(Spot(16, 0, 2, 4), "Drift", "Measured over predicted, minus 1. Beyond 15% the load does not explain it.",
               "percentunit", q.DRIFT_NOW, steps=((None, AMBER), (-DRIFT_LIMIT, GREEN), (DRIFT_LIMIT, RED)),
               decimals=1, empty="-"),
        number(Spot(18, 0, 4, 4), "Headroom, tokens", "Context tokens that still fit; negative: so many too many. "
               "The smallest of the selected engines.", "short", q.HEADROOM,
               steps=((None, RED), (0.0, GREEN)), decimals=1),
        number(Spot(22, 0, 2, 4), "Engines", "Engines in this picture. With more than one, times are their mean and "
               "tokens their sum: choose one pod and one engine above.", "none", q.ENGINES_SHOWN,
               steps=((None, INK), (2.0, AMBER)), decimals=0),
    ]  # fmt: skip


def _prediction() -> list:  # type: ignore[type-arg]
    main = graph(
        Spot(0, 4, 17, 10),
        "Inter-token latency: measured against predicted",
        "Mean gap between two tokens of a request as measured, as predicted from the load, and as promised. The band "
        "is the histogram bucket that holds the median: the prediction should touch it, unless prompt chunks make a "
        "few steps very long (cause prefill). KV cache usage on the right.",
        "s",
        (q.MEDIAN_LOWER, q.MEDIAN_UPPER, q.KV_USAGE, q.PROMISED, q.PREDICTED, q.MEASURED),
        colours={"measured": INK},
    )
    # Wider than the measured line, which lies on it when all is well.
    main = main.override_by_name("predicted", [colour(BLUE), prop("custom.lineWidth", 5)])
    main = main.override_by_name("promised", [colour(RED), prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})])
    edge = [colour("#7C8DA6"), prop("custom.lineWidth", 0)]
    hidden = prop("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False})
    main = main.override_by_name("median's bucket, lower", [*edge, hidden])
    main = main.override_by_name(
        "bucket of the median (band)",
        [*edge, prop("custom.fillBelowTo", "median's bucket, lower"), prop("custom.fillOpacity", 20)],
    )
    main = main.override_by_name(
        "KV cache usage (right)",
        [
            prop("unit", "percentunit"), prop("min", 0), prop("max", 1), prop("custom.axisPlacement", "right"),
            prop("custom.axisLabel", "KV cache usage"), prop("custom.lineWidth", 1), colour("#8A7A4F"),
        ],
    )  # fmt: skip
    stack = graph(
        Spot(0, 18, 12, 9),
        "What the time is made of",
        "The parts of the predicted inter-token latency, stacked; the line is what was measured. What sticks out "
        "above the stack is unexplained.",
        "s",
        (*q.COMPONENTS, q.MEASURED),
        colours={**COMPONENT_COLOURS, "measured": INK},
    )
    for name in COMPONENT_COLOURS:
        stacked = prop("custom.stacking", {"mode": "normal", "group": "A"})
        stack = stack.override_by_name(name, [stacked, prop("custom.fillOpacity", 70), prop("custom.lineWidth", 0)])
    tokens = graph(
        Spot(12, 18, 12, 9),
        "Context tokens in flight against what fits",
        "Tokens whose KV each step reads, the number at which the decode step reaches its target, and the number that "
        "memory holds.",
        "short",
        (q.IN_FLIGHT, q.BUDGET_SPEED, q.BUDGET_MEMORY),
        colours={"in flight": AMBER},
        axis="tokens",
    )
    for name, shade in (("fit at the promised speed", RED), ("fit in memory", "#8C6BB1")):
        dash = prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
        tokens = tokens.override_by_name(name, [colour(shade), dash])
    return [
        main,
        prose(Spot(17, 4, 7, 14), "How to read this", "What to compare with what, and what to do.", HOW_TO_READ),
        lane(Spot(0, 14, 17, 4), "Why, over time", "The cause in force. Gaps: not judged (idle, warming up, too few "
             "tokens).", q.CAUSES_OVER_TIME, CAUSE_COLOURS),
        stack,
        tokens,
    ]  # fmt: skip


def _load() -> list:  # type: ignore[type-arg]
    drift = graph(
        Spot(0, 27, 8, 8),
        "Drift over time",
        "Measured over predicted inter-token latency minus 1, over judged tokens only. Above +15% the engine is slower "
        "than its load explains, below -15% the calibration is too pessimistic.",
        "percentunit",
        (q.DRIFT_OVER_TIME,),
        colours={"drift": INK},
    )
    faint = "rgba(224, 71, 94, 0.15)"
    band = thresholds(((None, faint), (-DRIFT_LIMIT, "transparent"), (DRIFT_LIMIT, faint)))
    area = common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.AREA)
    drift = drift.thresholds(band).thresholds_style(area).axis_soft_min(-0.25).axis_soft_max(0.25)
    batch = graph(
        Spot(8, 27, 8, 8), "Requests and batch", "Requests by phase, and the sequences that a decode step works on.",
        "short", (q.REQUESTS, q.BATCH),
        colours={"decoding": BLUE, "prefilling": "#D45087", "waiting": AMBER, "sequences per step": INK},
        axis="requests",
    )  # fmt: skip
    prefill = graph(
        Spot(16, 27, 8, 8), "Prompt work inside decode steps", "Prompt tokens computed per decode step, and the share "
        "of the time per token that they add.", "short", (q.PREFILL_TOKENS, q.INTERFERENCE),
        colours={"prompt tokens per step": "#D45087"}, axis="tokens",
    )  # fmt: skip
    prefill = prefill.override_by_name(
        "share of the time per token (right)",
        [
            prop("unit", "percentunit"),
            prop("min", 0),
            prop("max", 1),
            prop("custom.axisPlacement", "right"),
            prop("custom.axisLabel", "share of time"),
            colour(INK),
        ],
    )
    return [
        drift,
        batch,
        prefill,
        lane(Spot(0, 35, 12, 6), "State", "What stepscope could say. Drift is judged in 'measuring' only.",
             q.STATES_OVER_TIME, STATE_COLOURS),
        graph(Spot(12, 35, 6, 6), "Time to first token", "Mean over the requests that got their first token.", "s",
              (q.TTFT,), colours={"time to first token": BLUE}),
        graph(Spot(18, 35, 6, 6), "Context per request", "Tokens in flight per decoding request: long sessions show "
              "here.", "short", (q.TOKENS_PER_SEQUENCE,), colours={"context per request": AMBER}, axis="tokens"),
    ]  # fmt: skip


def _basis() -> list:  # type: ignore[type-arg]
    small = [
        ("Effective bandwidth", "Bytes per second at which a step's reads proceed, all GPUs.", "Bps", q.BANDWIDTH, 1),
        ("Share of peak", "Effective bandwidth over the data sheet's. 60% is common, weights alone reach 95%; far "
         "below, the engine may have been slow when it was calibrated.", "percentunit", q.SHARE_OF_PEAK, 0),
        ("Overhead", "Seconds of a step that do not depend on bytes.", "s", q.OVERHEAD, 2),
        ("Per sequence", "Extra seconds per sequence in a step.", "s", q.SEQUENCE_COST, 1),
        ("Per prompt token", "Extra seconds per prompt token mixed into a step.", "s", q.PREFILL_COST, 1),
        ("KV capacity", "Tokens that the KV cache holds.", "short", q.CAPACITY, 0),
        ("Fit error", "Median relative error of the calibration on its own points; '-' where there is none.",
         "percentunit", q.RESIDUAL, 1),
        ("Mismatch", "Whether the calibration was made for another engine, model or GPU.", "bool_yes_no",
         q.MISMATCH, 0),
    ]  # fmt: skip
    return [
        dashboard.Row("What the prediction rests on").grid_pos(Spot(0, 41, 24, 1).grid),
        *(
            number(Spot(3 * at, 42, 3, 3), title, text, unit, query, decimals=decimals, empty="-")
            for at, (title, text, unit, query, decimals) in enumerate(small)
        ),
        rows(Spot(0, 45, 6, 4), "Parameters from", "file (calibrated), learned (fitted online) or datasheet (assumed).",
             (q.CALIBRATION,), {"source": "Source", "id": "Identity"}),
        rows(Spot(6, 45, 18, 4), "Hardware facts in use", "What was assumed of the GPUs, and from where.",
             (q.HARDWARE,),
             {"gpu": "GPU", "count": "Count", "peak_bandwidth_bytes_per_second": "Peak bandwidth",
              "peak_flops": "Peak FLOP/s", "source": "From"},
             {"Peak bandwidth": "Bps", "Peak FLOP/s": "flops"},
             {"GPU": 140, "Count": 80, "Peak bandwidth": 150, "Peak FLOP/s": 130}),
        rows(Spot(0, 49, 24, 4), "Model facts in use", "What was assumed of the model, and from where.", (q.MODEL,),
             {"model": "Model", "kind": "Kind", "attention": "Attention", "weight_bytes": "Weights",
              "kv_bytes_per_token": "KV per token", "kv_dtype": "KV type", "source": "From"},
             {"Weights": "decbytes", "KV per token": "decbytes"},
             {"Model": 240, "Kind": 90, "Attention": 110, "Weights": 110, "KV per token": 130, "KV type": 110}),
    ]  # fmt: skip
