"""What every board has around its panels: uid, time range, variables, annotations, links."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from boards.queries import ALERTS, ENGINE, SIDECAR
from boards.style import RED, SOURCE

# (name, what the reader sees, the series that has the label, the selection above it)
_VARIABLES = (
    ("namespace", "Namespace", "stepscope_build_info", ""),
    ("pod", "Pod", "stepscope_build_info", 'namespace=~"$namespace"'),
    ("instance", "Instance", "stepscope_build_info", 'namespace=~"$namespace",pod=~"$pod"'),
    ("model_name", "Model", "stepscope_kv_cache_usage_ratio", SIDECAR),
    ("engine", "Engine", "stepscope_kv_cache_usage_ratio", SIDECAR + ',model_name=~"$model_name"'),
)
UIDS = {"engine": "stepscope-engine", "fleet": "stepscope-fleet"}  # fixed: alerts and bookmarks point here
SELECTION = "".join(f"&${{{name}:queryparam}}" for name, *_ in _VARIABLES)


def frame(uid: str, title: str, description: str, *, several: bool) -> dashboard.Dashboard:
    """An empty board. `several`: whether more than one pod, model and engine can be picked at a time."""
    board = dashboard.Dashboard(title).uid(uid).description(description).tags(["stepscope"]).timezone("browser")
    board = board.time("now-1h", "now").refresh("15s").tooltip(model.DashboardCursorSync.CROSSHAIR).version(1)
    board = board.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name, label, series, selection in _VARIABLES:
        variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE)
        variable = variable.query(f"label_values({series}{{{selection}}}, {name})")
        # ".*" also finds series without the label: a plain Prometheus knows no pods.
        variable = variable.include_all(True).all_value(".*").multi(several)
        variable = variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        board = board.with_variable(variable.sort(model.VariableSort.NATURAL_ASC))
    steps = ("15s", "5s", "30s", "1m")
    interval = dashboard.CustomVariable("scrape_interval").label("Scrape interval").values(",".join(steps))
    interval = interval.options([model.VariableOption(text=s, value=s, selected=s == steps[0]) for s in steps])
    board = board.with_variable(interval.current(model.VariableOption(text=steps[0], value=steps[0], selected=True)))
    alerts = dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).enable(True).icon_color(RED)
    board = board.annotation(alerts.expr(ALERTS.expr))
    links = dashboard.DashboardLink("stepscope").type(model.DashboardLinkType.DASHBOARDS).tags(["stepscope"])
    return board.link(links.include_vars(True).keep_time(True).as_dropdown(False))


__all__ = ["ENGINE", "SELECTION", "UIDS", "frame"]
