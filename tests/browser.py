"""A real headless Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tools import require_tool

# No sandbox: it needs rights that containers do not give. The rest keeps the browser from calling home.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; skips or fails as `require_tool` does where it is not installed."""
    program = require_tool("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Watched:
    """A page and what it did that it should not do."""

    page: Page
    complaints: list[str] = field(default_factory=list)  # console warnings and errors, uncaught exceptions
    hosts: set[str] = field(default_factory=set)  # host:port of every request


@contextmanager
def watched(browser: Browser, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Watched]:
    """A new page, listened to from the start."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.set_default_timeout(15_000)
    found = Watched(page)
    page.on("console", lambda m: found.complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("request", lambda request: found.hosts.add(urlsplit(request.url).netloc))
    try:
        yield found
    finally:
        context.close()
