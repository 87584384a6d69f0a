"""The live page: one document with its own style and script, and a policy that allows nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from importlib import resources

# In this order they make one script; a file uses only what stands above it.
SCRIPTS = ("format.js", "plot.js", "chart.js", "lane.js", "panels.js", "page.js")
MAX_PAGE_BYTES = 200_000  # what a slow port-forward still loads at once
_STYLE_PLACE, _SCRIPT_PLACE = "/* style.css */", "/* scripts */"


@dataclass(frozen=True, slots=True)
class LivePage:
    """The document and the headers that go with it."""

    body: bytes
    headers: tuple[tuple[str, str], ...]


@functools.cache
def live_page() -> LivePage:
    """Put together from the files beside this one, once. The policy names style and script by their SHA-256."""
    style = _text("style.css")
    # Strict mode and one scope for all: nothing is left on `window`.
    script = '"use strict";\n(() => {\n' + "\n".join(_text(name) for name in SCRIPTS) + "\n})();\n"
    html = _text("index.html").replace(_STYLE_PLACE, style).replace(_SCRIPT_PLACE, script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
    )
    return LivePage(html.encode(), headers)


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
