"""One row per engine dialect. To support another engine, add a module with a `read` function and name it in `ROWS`.

`read(text, at_seconds)` returns a Reading in canonical fields, or None if the page is not of this dialect. It raises
NotMetricsError for what is not a whole Prometheus page. What an engine cannot say stays None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stepscope.core.sample import Reading
from stepscope.engines import vllm

Read = Callable[[str, float], Reading | None]

# How series of engines begin that have no row yet (text-generation-inference#2887, sglang#4051).
_FOREIGN = {"sglang": "SGLang", "tgi": "TGI"}
_FOREIGN_SERIES = re.compile(r"^(sglang|tgi)[:_]", re.MULTILINE)

ROWS: dict[str, Read] = {"vllm": vllm.read}


def read(text: str, at_seconds: float) -> Reading | None:
    """The reading of the first dialect that finds an engine on the page, else None."""
    for dialect in ROWS.values():
        reading = dialect(text, at_seconds)
        if reading is not None and reading.engines:
            return reading
    return None


def why_none(text: str) -> str:
    """What to say of a page on which no dialect finds an engine."""
    found = _FOREIGN_SERIES.search(text)
    if found is not None:
        return f"the page is of {_FOREIGN[found[1]]}, stepscope reads vLLM"
    return "the page has no engine series (is vLLM started with --disable-log-stats?)"
