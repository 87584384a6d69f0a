"""The live page while the engine, the sidecar and the demo start, stop and come back."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from playwright.sync_api import Browser

from browser import watched
from page_helpers import STEADY, answers, eventually, field, ready, until
from stage import Stage
from stepscope.sim.server import SimServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(stage: Stage) -> SimServer:
    """Forty chats."""
    return stage.engine(STEADY)


def test_it_is_the_page_of_the_demo(browser: Browser) -> None:
    """`stepscope demo` as a user starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    demo = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "demo", f"--listen-address={listen}"], stdout=subprocess.DEVNULL
    )
    try:
        eventually(lambda: answers(f"http://{listen}/-/ready"), 20.0)
        with watched(browser) as found:
            ready(found, f"http://{listen}/")
            assert "Qwen/Qwen3-8B" in found.page.locator("#subject").inner_text()
            assert found.page.locator("#headline strong").inner_text() == "Fast enough"
            assert found.complaints == []
    finally:
        demo.terminate()
        assert demo.wait(15) == 0


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


def test_an_engine_that_never_came_up_is_no_error_of_the_page(browser: Browser, stage: Stage) -> None:
    """The first minutes of a pod: the model still loads."""
    sidecar = stage.sidecar("http://127.0.0.1:9", "loading")
    with watched(browser) as found:
        found.page.goto(f"http://127.0.0.1:{sidecar.web.port}/")
        found.page.locator("#notices").get_by_text("The engine has not come up yet").wait_for()
        assert found.page.locator("#headline").inner_text() == "Waiting for the first sample"
        assert "refused. Loading a model takes minutes" in found.page.locator("#notices").inner_text()
        times = found.page.locator('[data-chart="itl"] text').all_text_contents()
        assert not [text for text in times if text.endswith("s")], "numbers on the axis without data"
        assert found.complaints == []
