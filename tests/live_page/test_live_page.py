"""The live page in a real browser, beside a real sidecar that watches a simulated engine."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

import pytest
from playwright.sync_api import Browser

from browser import watched
from page_helpers import CHATS, STEADY, eventually, field, ready, snapshot, until, verdict_shown
from stage import Stage
from stepscope import settings as table
from stepscope.runtime.live import MAX_PAGE_BYTES, live_page
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.server import SimServer

pytestmark = pytest.mark.slow

AGENTS = Group("agent", count=2, prompt_tokens=100_000, output_tokens=8_000, aged=True)  # aged: their prompts are done
BURSTS = Group("burst", count=6, prompt_tokens=8_000, output_tokens=8, think_seconds=1.5)
STORY = Scenario(
    (
        Phase("40 chats", 10.0, (CHATS,)),
        Phase("two agents", 10.0, (CHATS, AGENTS)),
        Phase("prompt bursts", 600.0, (CHATS, BURSTS)),
    )
)
# (is it slow, why, what to do, the cause in the strip), phase by phase
ANSWERS = (
    ("Fast enough", "As fast as the load allows", "more context tokens fit", "as fast as the load allows"),
    ("Slow", "hold more context than usual", "tokens are too many", "long context"),
    ("Slow", "Prompt chunks share the steps", "--max-num-batched-tokens", "prompt chunks"),
)


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
        cause = found.page.locator("figure", has=found.page.locator('[data-chart="cause"]')).inner_text()
        assert "warming up" in cause, "a colour without its word"
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
        spoken = page.locator("#spoken").inner_text()
        assert re.match(r"\d\d:\d\d:\d\d: measured \d+\.\d ms, predicted", spoken)
        page.wait_for_timeout(2500)  # two samples later nothing is said unasked
        assert (page.locator("#spoken").inner_text(), chart.get_attribute("aria-label")) == (spoken, label)
        chart.press("Escape")
        assert page.locator("#charts line.cursor").count() == 0
        page.locator("summary").focus()
        page.keyboard.press("Enter")
        row = page.locator("#samples tbody tr").first.inner_text()
        assert "measuring" in row
        assert page.locator("html").get_attribute("lang") == "en"
        assert page.locator("h1").count() == 1
        assert "Fast enough" in page.locator("#announce").inner_text()


def test_one_screen_answers_slow_against_what_why_and_what_to_do(browser: Browser, stage: Stage) -> None:
    """Through the story of the demo, told faster: chats, two long sessions, prompt bursts."""
    sidecar = stage.sidecar(stage.engine(STORY).url, "story")
    with watched(browser) as found:
        ready(found, f"http://127.0.0.1:{sidecar.web.port}/")
        for word, why, advice, cause in ANSWERS:
            # All of one sample: the next may stand there a second later.
            eventually(lambda: all(part in verdict_shown(found) for part in (word, why, advice)), 40.0)  # noqa: B023
            figures = r": \d+\.\d ms per token, \d+ tokens/s for each user; 50 promised"
            assert re.search(figures, found.page.locator("#headline").inner_text())
            until(
                found, f"document.querySelector('[data-chart=cause]').closest('figure').innerText.includes({cause!r})"
            )
        for part in ("#headline", "#why", "#advice", "#figures", '[data-chart="itl"]', '[data-chart="tokens"]'):
            box = found.page.locator(part).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 900, f"{part} is below the fold"
        assert found.complaints == []


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
