"""What tests of the live page do again and again: wait, read a figure, open the page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import requests

from browser import Watched
from stage import ask
from stepscope.sim.scenario import Group, Phase, Scenario

CHATS = Group("chat", count=40, prompt_tokens=1000, output_tokens=2000, aged=True)
STEADY = Scenario((Phase("40 chats", 600.0, (CHATS,)),))


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


def verdict_shown(found: Watched) -> str:
    """Headline, reason and advice, read at one moment."""
    text: str = found.page.evaluate("document.querySelector('#verdict').innerText")
    return text


def ready(found: Watched, root: str) -> None:
    """Open the page and wait until it shows a verdict and its charts."""
    found.page.goto(root)
    until(found, "document.querySelectorAll('#charts path').length > 5")
    # The first sample sees an idle engine; the demo then warms up for ten seconds.
    said = "document.querySelector('#verdict').className !== 'unknown'"
    until(found, f"{said} && !document.querySelector('#headline').textContent.startsWith('Idle')", 40.0)


def answers(url: str) -> bool:
    """Whether something listens there."""
    try:
        return ask(url).ok
    except requests.ConnectionError:
        return False
