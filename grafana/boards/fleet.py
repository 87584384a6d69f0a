"""The board of all engines: which are worst off, why, and whether the sidecars themselves are well."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models import common as kinds

from boards import queries as q
from boards.frame import UIDS, frame
from boards.style import (
    AMBER,
    BLUE,
    CAUSE_COLOURS,
    GREEN,
    INK,
    RED,
    Spot,
    bars,
    graph,
    number,
    prop,
    prose,
    rows,
    thresholds,
)

HOW_TO_READ = """\
- **Click a pod** in the table: its own board says why
- **Headroom**: context tokens that still fit at the promised speed
- **Drift**: slower than the load explains, a fault on that node
"""
OUTCOME_COLOURS = {
    "ok": GREEN, "timeout": AMBER, "connection": RED, "http_status": "#B8691B", "not_metrics": "#8C6BB1",
    "too_large": "#D45087", "no_engine_metrics": "#2A9D8F",
}  # fmt: skip
DRIFT_STEPS = ((None, GREEN), (0.15, RED))  # the drift limit: stepscope.core.compare
# Grafana puts the clicked row's cells and the time range in.
_LINK = (
    f"/d/{UIDS['engine']}?var-datasource=${{datasource}}&var-namespace=${{__data.fields.Namespace}}"
    "&var-pod=${__data.fields.Pod}&var-instance=${__data.fields.Instance}&var-model_name=${__data.fields.Model}&var-engine=${__data.fields.Engine}"
    "&${__url_time_range}"
)


def build() -> dashboard.Dashboard:
    """The whole board."""
    board = frame(
        UIDS["fleet"],
        "stepscope: fleet",
        "All engines: which pods are worst off, and why.",
        several=True,
    )
    for at, panel in enumerate([*_numbers(), *_worst(), *_pods(), *_sidecars()], start=1):
        board = board.with_row(panel) if isinstance(panel, dashboard.Row) else board.with_panel(panel.id(at))
    return board


def _numbers() -> list:  # type: ignore[type-arg]  # panels of several kinds share no type
    bad = ((None, GREEN), (1.0, RED))
    counts = [
        ("Slow engines", "Engines whose users get less than the promised speed now.", q.ENGINES_SLOW, bad),
        ("Over budget", "Engines with more context tokens in flight than fit.", q.ENGINES_OVER, bad),
        ("Drifting", "Engines more than 15% slower than their load explains.", q.ENGINES_DRIFTING, bad),
        ("Engines down", "Engines whose metrics page cannot be read.", q.ENGINES_DOWN, bad),
        ("Bad configuration", "Sidecars that run on defaults because their configuration is wrong.", q.CONFIG_BAD, bad),
        ("Sidecars", "Sidecars that Prometheus sees.", q.SIDECARS, ((None, INK),)),
    ]
    return [
        *(
            number(Spot(3 * at, 0, 3, 5), title, text, "none", query, steps=steps, decimals=0)
            for at, (title, text, query, steps) in enumerate(counts)
        ),
        prose(Spot(18, 0, 6, 5), "How to read this", "Where to look first.", HOW_TO_READ),
    ]


def _worst() -> list:  # type: ignore[type-arg]
    share = graph(
        Spot(0, 13, 12, 9), "Time by cause", "Share of the judged time that each cause was in force, over all selected "
        "engines. What is missing to 100% was not judged or idle.", "percentunit", (q.CAUSE_SHARE,),
        colours=CAUSE_COLOURS,
    )  # fmt: skip
    for name in CAUSE_COLOURS:
        stacked = prop("custom.stacking", {"mode": "normal", "group": "A"})
        share = share.override_by_name(name, [stacked, prop("custom.fillOpacity", 70), prop("custom.lineWidth", 0)])
    models = graph(
        Spot(12, 13, 12, 9), "Tokens in flight, of what fits, by model", "Context tokens in flight over what fits at "
        "the promised speed and in memory, each summed over the engines of a model. Above 100% a model has too few "
        "engines.", "percentunit", (q.MODEL_SHARE,),
    )  # fmt: skip
    line = common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED)
    models = (
        models.thresholds(thresholds(((None, "transparent"), (1.0, RED)))).thresholds_style(line).axis_soft_max(1.1)
    )
    return [
        bars(Spot(0, 5, 12, 8), "Least headroom, tokens", "The ten engines with the fewest context tokens to spare; "
             "negative: over budget.", "short", q.WORST_HEADROOM, ((None, RED), (0.0, GREEN)), "no promise, no budget"),
        bars(Spot(12, 5, 12, 8), "Most drift", "The ten engines that are slowest against their own prediction.",
             "percentunit", q.WORST_DRIFT, DRIFT_STEPS, "nothing judged now"),
        share,
        models,
    ]  # fmt: skip


def _pods() -> list:  # type: ignore[type-arg]
    pods = rows(
        Spot(0, 22, 24, 9),
        "Pods",
        "All selected engines now, and those that do not answer. Click a pod for its own board.",
        (q.TABLE_HEADROOM, q.TABLE_IN_FLIGHT, q.TABLE_MEASURED, q.TABLE_PREDICTED, q.TABLE_PROMISED, q.TABLE_DRIFT,
         q.TABLE_STATE, q.TABLE_CAUSE),
        {
            "namespace": "Namespace", "pod": "Pod", "instance": "Instance", "model_name": "Model", "engine": "Engine",
            "state": "State", "cause": "Cause", "Value #C": "Measured", "Value #D": "Predicted", "Value #E": "Promised",
            "Value #F": "Drift", "Value #B": "Tokens in flight", "Value #A": "Headroom, tokens",
        },
        widths={"Namespace": 105, "Pod": 205, "Instance": 145, "Model": 190, "Engine": 65, "State": 130, "Cause": 125,
                "Measured": 85, "Predicted": 85, "Promised": 85, "Drift": 65, "Tokens in flight": 130,
                "Headroom, tokens": 155},
    )  # fmt: skip
    link = prop("links", [{"title": "Predicted vs actual of this engine", "url": _LINK, "targetBlank": False}])
    for name in ("Pod", "Instance"):  # where the scrape configuration adds no pods there is the instance to click
        pods = pods.override_by_name(name, [link])
    for name in ("Measured", "Predicted", "Promised"):
        pods = pods.override_by_name(name, [prop("unit", "s"), prop("decimals", 1)])
    for name in ("Tokens in flight", "Headroom, tokens"):
        pods = pods.override_by_name(name, [prop("unit", "short"), prop("decimals", 1)])
    text = prop("custom.cellOptions", {"type": "color-text"})
    steps = [{"value": None, "color": RED}, {"value": 0, "color": GREEN}]
    pods = pods.override_by_name("Headroom, tokens", [text, prop("thresholds", {"mode": "absolute", "steps": steps})])
    steps = [{"value": value, "color": shade} for value, shade in DRIFT_STEPS]
    limits = prop("thresholds", {"mode": "absolute", "steps": steps})
    pods = pods.override_by_name("Drift", [text, limits, prop("unit", "percentunit"), prop("decimals", 1)])
    shades = {
        name: {"text": name, "color": shade, "index": at} for at, (name, shade) in enumerate(CAUSE_COLOURS.items())
    }
    return [pods.override_by_name("Cause", [text, prop("mappings", [{"type": "value", "options": shades}])])]


def _sidecars() -> list:  # type: ignore[type-arg]
    scrapes = graph(
        Spot(0, 32, 8, 8), "Scrapes of engines, by outcome", "How stepscope's own scrapes of the engines end.", "reqps",
        (q.SCRAPES,), colours=OUTCOME_COLOURS,
    )  # fmt: skip
    return [
        dashboard.Row("The sidecars themselves").grid_pos(Spot(0, 31, 24, 1).grid),
        scrapes,
        graph(Spot(8, 32, 8, 8), "Oldest samples", "Seconds since the last good page of an engine, the ten oldest: "
              "beyond 90 seconds its values are no longer published.", "s", (q.SAMPLE_AGE,)),
        bars(Spot(16, 32, 4, 8), "Versions", "Sidecars by version: more than one bar means a rollout is under way or "
             "stuck.", "none", q.VERSIONS, ((None, BLUE),), decimals=0),
        number(Spot(20, 32, 4, 8), "Engine restarts", "New engine lives seen in the shown time.", "none", q.RESTARTS,
               steps=((None, GREEN), (0.5, AMBER)), decimals=0),
    ]  # fmt: skip
