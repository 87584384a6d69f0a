"""The live page in a real browser, beside a real sidecar that watches a simulated engine."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from browser import Watched, chromium, watched
from stage import Stage, ask
from stepscope import settings as table
from stepscope.runtime.live import MAX_PAGE_BYTES, live_page
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.server import SimServer

pytestmark = pytest.mark.slow

CHATS = Group("chat", count=40, prompt_tokens=1000, output_tokens=2000, aged=True)
STEADY = Scenario((Phase("40 chats", 600.0, (CHATS,)),))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each has its own context."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The world of this module."""
    with Stage(tmp_path_factory.mktemp("stage")) as started:
        yield started


@pytest.fixture(scope="module")
def engine(stage: Stage) -> SimServer:
    """Forty chats."""
    return stage.engine(STEADY)


@pytest.fixture(scope="module")
def url(stage: Stage, engine: SimServer) -> str:
    """A sidecar beside them, past its warm-up."""
    sidecar = stage.sidecar(engine.url, "chat-a")
    root = f"http://127.0.0.1:{sidecar.web.port}/"
    eventually(lambda: any(view["state"] == "measuring" for view in snapshot(root)["engines"]), 30.0)
    return root


def snapshot(root: str) -> dict[str, Any]:
    """What the page is made from."""
    document: dict[str, Any] = ask(root + "api/v1/snapshot").json()
    return document


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for it, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def until(found: Watched, condition: str, seconds: float = 15.0) -> None:
    """Wait for an expression of the page; Playwright's own waiting needs the eval that the policy forbids."""
    eventually(lambda: bool(found.page.evaluate(condition)), seconds)


def field(found: Watched, name: str) -> str:
    """The text of one figure."""
    return found.page.locator(f'[data-field="{name}"]').inner_text()


def ready(found: Watched, root: str) -> None:
    """Open the page and wait until it shows a verdict and its charts."""
    found.page.goto(root)
    until(found, "document.querySelectorAll('#charts path').length > 5")
    until(found, "document.querySelector('#verdict').className !== 'unknown'")


def test_the_page_is_one_small_document_whose_policy_allows_only_itself() -> None:
    """Style and script are named by their hashes; nothing is loaded, no handler and no style hides in the markup."""
    page = live_page()
    html = page.body.decode()
    policy = dict(page.headers)["Content-Security-Policy"]
    assert len(page.body) < MAX_PAGE_BYTES
    for kind in ("style", "script"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
        assert f"{kind}-src 'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    markup = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"\son\w+=|\sstyle=|<script\s|<img|<iframe|src=", markup)
    assert not re.findall(r"https?://(?!www\.w3\.org)", html)


def test_the_figures_are_those_of_the_snapshot(browser: Browser, url: str) -> None:
    """What a person reads is what a program reads, and the browser has nothing to complain about."""
    with watched(browser) as found:
        ready(found, url)

        def agrees() -> bool:
            # The sidecar samples every second: compare only where the page shows the very snapshot we read.
            before = snapshot(url)["engines"][0]
            shown = [field(found, name) for name in ("itl_mean_seconds", "predicted_itl_seconds", "tokens_in_flight")]
            after = snapshot(url)["engines"][0]
            expected = [
                f"{before['itl_mean_seconds'] * 1e3:.1f} ms",
                f"{before['predicted_itl_seconds'] * 1e3:.1f} ms",
                f"{before['tokens_in_flight']:,.0f}",
            ]
            return before["tokens_in_flight"] == after["tokens_in_flight"] and shown == expected

        eventually(agrees, 20.0)
        view = snapshot(url)["engines"][0]
        assert found.page.locator("#headline strong").inner_text() == "Fast enough"
        assert field(found, "target_itl_seconds") == "20.0 ms"
        assert found.page.locator("#why").inner_text() == view["verdict"]["why"]
        assert "more context tokens fit" in found.page.locator("#advice").inner_text()
        assert "147,456 bytes of KV per token" in found.page.locator("#assumed").inner_text()
        assert found.hosts == {url.split("/")[2]}
        assert found.complaints == []


def test_it_refreshes_itself_without_being_asked(browser: Browser, url: str) -> None:
    """The age of the sample stays small, and new points enter the charts."""
    with watched(browser) as found:
        ready(found, url)
        measured = found.page.locator('[data-chart="itl"] path.c-measured')
        first = measured.get_attribute("d") or ""
        eventually(lambda: (measured.get_attribute("d") or "").count("L") > first.count("L") + 1)
        assert re.fullmatch(r"sampled [0-3] s ago", found.page.locator("#freshness").inner_text())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone_in_both_schemes(browser: Browser, url: str, dark: bool) -> None:
    """Nothing sticks out sideways, the text is readable, and the background follows the scheme."""
    with watched(browser, width=360, height=740, dark=dark) as found:
        ready(found, url)
        assert found.page.evaluate("document.documentElement.scrollWidth") <= 360
        colours = found.page.evaluate(
            "['color', 'backgroundColor'].map((name) =>"
            " getComputedStyle(document.body)[name].match(/\\d+/g).map(Number))"
        )
        ink, paper = (sum(c) / 3 for c in colours)
        assert (ink > 200 and paper < 40) if dark else (ink < 60 and paper > 230)
        smallest = found.page.evaluate(
            "Math.min(...[...document.querySelectorAll('main p, main dd, main dt, main li')]"
            ".map((node) => parseFloat(getComputedStyle(node).fontSize)))"
        )
        assert smallest >= 12.0
        assert found.complaints == []


def test_keyboard_and_screen_reader_can_use_it(browser: Browser, url: str) -> None:
    """Charts take the focus and say their values, arrow keys move through the samples, the table has them as text."""
    with watched(browser) as found:
        ready(found, url)
        page = found.page
        chart = page.locator('[data-chart="itl"]')
        chart.focus()
        label = chart.get_attribute("aria-label") or ""
        assert re.search(r"measured \d+\.\d ms, predicted \d+\.\d ms, promised 20\.0 ms", label)
        chart.press("Home")
        oldest = page.locator("figcaption time").first.inner_text()
        chart.press("ArrowRight")
        assert re.fullmatch(r"at \d\d:\d\d:\d\d", oldest)
        assert page.locator("figcaption time").first.inner_text() != oldest
        assert page.locator("#charts line.cursor").count() == 3
        chart.press("Escape")
        assert page.locator("#charts line.cursor").count() == 0
        page.locator("summary").focus()
        page.keyboard.press("Enter")
        row = page.locator("#samples tbody tr").first.inner_text()
        assert "measuring" in row
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.locator("h1").count() == 1
        assert "Fast enough" in page.locator("#announce").inner_text()


def test_it_says_that_the_engine_is_away_and_recovers(browser: Browser, stage: Stage) -> None:
    """A restarted engine: the old values are marked, then judged anew, without a reload of the page."""
    engine = stage.engine(STEADY)
    sidecar = stage.sidecar(engine.url, "restarting")
    root = f"http://127.0.0.1:{sidecar.web.port}/"
    with watched(browser) as found:
        ready(found, root)
        engine.set_faults(restart=4)
        notice = found.page.locator("#notices")
        notice.get_by_text("The engine is not answering").wait_for()
        assert "old" in (found.page.locator("body").get_attribute("class") or "")
        until(found, "document.querySelector('#notices').textContent === ''", 20.0)
        until(found, "document.querySelector('#verdict').className === 'good'", 30.0)
        assert found.complaints == []


def test_it_survives_the_sidecar_itself_going_and_coming_back(
    browser: Browser, stage: Stage, engine: SimServer
) -> None:
    """A broken port-forward is said in words, old values stay, and the page goes on by itself afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    sidecar = stage.sidecar(engine.url, "coming-back", listen=listen)
    with watched(browser) as found:
        ready(found, f"http://{listen}/")
        sidecar.stop()
        found.page.locator("#notices").get_by_text("stepscope does not answer: no answer.").wait_for(timeout=20_000)
        assert field(found, "itl_mean_seconds").endswith(" ms")
        assert found.page.title() == "no answer · stepscope"
        stage.sidecar(engine.url, "came-back", listen=listen)
        until(found, "document.querySelector('#notices').textContent === ''", 25.0)
        until(found, "document.title.startsWith('Fast enough')", 25.0)
        # The browser itself notes each refused connection; nothing else may be there.
        assert [line for line in found.complaints if "ERR_" not in line] == []


def test_what_is_missing_is_named_with_the_flag_that_supplies_it(browser: Browser, stage: Stage) -> None:
    """No GPU and no promise given: the page says so instead of guessing."""
    engine = stage.engine(STEADY)
    sidecar = stage.sidecar(
        engine.url, "unknown-gpu", (table.HARDWARE_GPU, None), (table.OBJECTIVE_TOKENS_PER_SECOND, None)
    )
    with watched(browser) as found:
        found.page.goto(f"http://127.0.0.1:{sidecar.web.port}/")
        found.page.locator("#headline strong").get_by_text("Cannot predict").wait_for()
        missing = found.page.locator("#missing").inner_text()
        assert "--hardware.gpu" in missing
        assert "--objective.tokens-per-second" in missing
        assert field(found, "predicted_itl_seconds") == "–"  # noqa: RUF001  # the page's dash for the unknown
        assert found.complaints == []


def test_an_engine_that_never_came_up_is_no_error_of_the_page(browser: Browser, stage: Stage) -> None:
    """The first minutes of a pod: the model still loads."""
    sidecar = stage.sidecar("http://127.0.0.1:9", "loading")
    with watched(browser) as found:
        found.page.goto(f"http://127.0.0.1:{sidecar.web.port}/")
        found.page.locator("#notices").get_by_text("The engine has not come up yet").wait_for()
        assert found.page.locator("#headline").inner_text() == "Waiting for the first sample"
        assert found.complaints == []


def test_names_from_the_engine_cannot_become_markup(browser: Browser, stage: Stage) -> None:
    """A model may be called anything."""
    name = "<img src=x onerror=alert(1)>"
    engine = stage.engine(STEADY, served_as=name)
    sidecar = stage.sidecar(engine.url, "hostile")
    with watched(browser) as found:
        found.page.goto(f"http://127.0.0.1:{sidecar.web.port}/")
        found.page.locator("#subject").get_by_text(name).wait_for()
        assert found.page.locator("img").count() == 0
        assert found.complaints == []


def test_of_several_engines_the_worst_is_shown_and_any_can_be_chosen(browser: Browser, stage: Stage) -> None:
    """Data parallel: one page, a row for each engine, and the choice of a person stands."""
    engine = stage.engine(STEADY, data_parallel=2)
    sidecar = stage.sidecar(engine.url, "two-ranks")
    with watched(browser) as found:
        ready(found, f"http://127.0.0.1:{sidecar.web.port}/")
        rows = found.page.locator("#engines tbody tr")
        assert rows.count() == 2
        other = found.page.locator('#engines button[aria-pressed="false"]')
        label = other.inner_text()
        other.click()
        found.page.locator("#subject").get_by_text(label).wait_for()
        found.page.wait_for_timeout(2500)
        assert label in found.page.locator("#subject").inner_text()
        assert found.complaints == []
