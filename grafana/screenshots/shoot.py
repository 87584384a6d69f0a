"""Takes the pictures of docs/images: the live page through the demo's story, and the dashboards of the same minutes.

A simulated fleet runs for two minutes beside a real Prometheus; Chromium looks at the page while it runs, and the
shared renderer draws the dashboards afterwards.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path[:0] = [str(HERE), str(REPOSITORY / "tests")]

from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from renderer import build, draw, serving  # noqa: E402

from browser import ARGUMENTS  # noqa: E402  # after the path that finds them
from stage import QUICK, Stage  # noqa: E402
from stepscope import settings as table  # noqa: E402
from stepscope.sim.scenario import SCENARIOS  # noqa: E402

IMAGES = REPOSITORY / "docs" / "images"
CACHE = REPOSITORY / ".tools" / "grafana-render"
LONGER = ((table.SAMPLE_WINDOW, 10.0), *QUICK[:1])
# (file, seconds into the story, width, height, dark); the phases change at 45 and 85 s.
LIVE = (
    ("live-fast.png", 40.0, 1280, 890, False),
    ("live-context.png", 78.0, 1280, 890, False),
    ("live-context-phone.png", 80.0, 390, 1720, True),
    ("live-prefill-dark.png", 116.0, 1280, 890, True),
)
ROW_PIXELS = 38  # of Grafana's grid
# (file, board, the pod shown, rows of the grid shown)
BOARDS = (
    ("grafana-engine.png", "stepscope-engine.json", "chat-7d9f-a", 27),
    ("grafana-fleet.png", "stepscope-fleet.json", ".*", 41),
)
ALL = dict.fromkeys(("namespace", "pod", "instance", "model_name", "engine"), ".*")


def main() -> int:
    """0 when the pictures are there, or when something to take them with is not (said in one line)."""
    shared = Path(os.environ.get("STEPSCOPE_SHARED", REPOSITORY.parent / "shared"))
    tool = shared / "tools" / "grafana-render"
    lacking = [name for name in ("chromium", "prometheus", "npm", "npx") if shutil.which(name) is None]
    if not tool.is_dir():
        lacking.append(f"{tool} (set STEPSCOPE_SHARED)")
    if lacking:
        sys.stdout.write(f"screenshots: not taken, this needs {', '.join(lacking)}\n")
        return 0
    built = build(tool, CACHE)
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder)) as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        began = time.time()
        url = _fleet(stage)
        for file, seconds, width, height, dark in LIVE:
            _look(browser, url, began + seconds, (width, height), dark, IMAGES / file)
        faults = _dashboards(browser, stage, built, (began + 4.0, time.time() - 2.0))
        browser.close()
    for fault in faults:
        sys.stderr.write(f"screenshots: {fault}\n")
    return 1 if faults else 0


def _fleet(stage: Stage) -> str:
    """Five pods, each with something to tell; the URL of the first one's page."""
    story = stage.engine(SCENARIOS["demo"])
    first = stage.sidecar(story.url, "chat-7d9f-a", *LONGER)
    stage.sidecar(stage.engine(SCENARIOS["steady"]).url, "chat-7d9f-b", *LONGER)
    stage.sidecar(stage.engine(SCENARIOS["steady"], throttle=1.4).url, "chat-7d9f-c", *LONGER)
    idle = stage.engine(None, "llama-3.1-8b")
    stage.sidecar(idle.url, "summary-5c4b-a", (table.MODEL_ID, "meta-llama/Llama-3.1-8B"))
    stage.sidecar("http://127.0.0.1:9", "summary-5c4b-b")
    stage.prometheus(shutil.which("prometheus") or "", 1)
    return f"http://127.0.0.1:{first.web.port}/"


def _look(browser: Browser, url: str, at: float, size: tuple[int, int], dark: bool, path: Path) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    time.sleep(max(0.0, at - time.time()))
    page.goto(url)
    page.wait_for_timeout(1500)
    page.screenshot(path=path)
    context.close()


def _dashboards(browser: Browser, stage: Stage, built: Path, span: tuple[float, float]) -> list[str]:
    """Draw each board; what its panels complained about."""
    faults = []
    with serving(built, stage.prometheus_url, REPOSITORY / "grafana") as url:
        for file, board, pod, rows in BOARDS:
            reports = draw(browser, url, board, {**ALL, "pod": pod}, span, IMAGES / file, rows * ROW_PIXELS)
            faults += [f"{board}: panel {panel}: {said}" for panel, said in reports.items() if said != "ok"]
    return faults


if __name__ == "__main__":
    sys.exit(main())
