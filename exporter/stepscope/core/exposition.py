"""Reads wanted samples out of a Prometheus text page without parsing the rest of it.

A vLLM page has some 600 lines of which about 60 matter; parsing it whole costs 10 to 20 times as much as this scan.
Lines whose name is not wanted are never looked into, so that a broken or huge foreign line costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

from stepscope.errors import NotMetricsError

# A label value is any run of characters except a bare quote, backslash or newline; escapes are \\ \" \n.
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}
_SAMPLE_LINE = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^\n]*\})?[ \t]+[-+0-9.eEinfINFaA]+(?:[ \t]+-?[0-9.]+)?[ \t]*$"
)
_COMMENTS = ("# HELP ", "# TYPE ", "# EOF", "# UNIT ")


class RawSample(NamedTuple):
    """One wanted line. `series` is the text before the value (`name{label="x"}`); `value` is None if unreadable."""

    name: str
    series: str
    value: float | None


def scan(text: str, wanted: Container[str]) -> Iterator[RawSample]:
    """Yield the samples whose name is in `wanted`, in page order.

    Raises NotMetricsError if the page is empty, cut inside its last line, or not a Prometheus text page at all.
    """
    if not text.strip():
        raise NotMetricsError("empty body")
    if not text.endswith("\n"):
        raise NotMetricsError("page is cut: no newline at its end")
    found = False
    new = tuple.__new__  # half the price of RawSample(...), which takes two calls
    # Not splitlines(): label values may hold characters that it takes for line ends.
    for line in text.split("\n"):
        if line.startswith("#"):
            continue
        brace = line.find("{")
        if brace > 0:
            name = line[:brace]
            if name[-1] in " \t":
                name = name.rstrip()
            if name not in wanted:
                continue
            found = True
            end = line.rfind("}") + 1
            series, rest = line[:end], line[end:]
            if " # " in rest or " # {" in line:
                series, rest = _split_exemplar(line)
        else:
            name, _, rest = line.replace("\t", " ").partition(" ")
            if name not in wanted:
                continue
            found = True
            series = name
        try:
            value = float(rest) if "_" not in rest else None
        except ValueError:
            value = _value(rest)  # a timestamp follows, or it is unreadable
        yield new(RawSample, (name, series, value))
    if not found and not looks_like_metrics(text):
        raise NotMetricsError(f"not a Prometheus text page: it begins with {text.lstrip()[:40]!r}")


def _split_exemplar(line: str) -> tuple[str, str]:
    """Split a line that may end in an OpenMetrics exemplar, by walking its labels."""
    at = line.index("{") + 1
    while (match := _LABEL.match(line, at)) is not None:
        at = match.end()
    return line[: at + 1], line[at + 1 :].split(" # ")[0]


def _value(text: str) -> float | None:
    fields = text.split()
    if not fields or len(fields) > 2 or "_" in fields[0]:
        return None
    try:
        return float(fields[0])
    except ValueError:
        return None


def parse_labels(series: str) -> dict[str, str] | None:
    """The labels of `name{a="x",b="y"}`; None if they are broken."""
    at = series.find("{")
    if at < 0:
        return {}
    at += 1
    labels: dict[str, str] = {}
    while (match := _LABEL.match(series, at)) is not None:
        key, raw = match.group(1), match.group(2)
        labels[key] = _ESCAPE.sub(lambda m: _ESCAPES.get(m.group(1), m.group(0)), raw) if "\\" in raw else raw
        at = match.end()
    return labels if series[at:].strip() == "}" else None


def looks_like_metrics(text: str) -> bool:
    """True if any line is a sample or a Prometheus comment. Only asked when no wanted sample was there."""
    return any(line.startswith(_COMMENTS) or _SAMPLE_LINE.match(line) for line in text.split("\n"))
