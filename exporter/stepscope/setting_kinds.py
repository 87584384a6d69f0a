"""What a setting is, and the kinds of value it may hold.

A kind is one function `text -> value` that raises ValueError with the second half of an operator's line, for example
`"abc" is not a duration (examples: 5s, 500ms, 1m)`; who calls it puts the name of the flag, variable or file before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from stepscope.errors import ConfigError

T = TypeVar("T")

MOST_PARTS = 64
ENVIRONMENT_PREFIX = "STEPSCOPE_"
_SHOWN_CHARACTERS = 60  # of a wrong value in a message: one line of a terminal holds the name, the value and the reason
_MOST_NAMES = 8  # each is a label value of a dozen series
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # the units of Prometheus durations up to an hour
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One row of the settings table: a flag, an environment variable and a file key at once.

    `parse` turns the text of any source into the value and raises ValueError. `derive` computes the default from the
    other values where it is not a constant, `default_text` is how the documentation says it. `secret` values are never
    shown. Of `commands` only those named here take the flag; file and environment may name it for any command.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    metavar: str
    help: str
    commands: frozenset[str]
    unit: str = ""
    secret: bool = False
    default_text: str = ""
    derive: Callable[[Any], T] | None = None
    repeatable: bool = False  # given several times, or as a list in a file: the texts are joined with ":"
    is_switch: bool = False  # the bare flag means true
    in_file: bool = True  # False: flag and environment only, because it is needed before the file is read

    @property
    def flag(self) -> str:
        """`--engine.url`"""
        return f"--{self.name}"

    @property
    def environment_name(self) -> str:
        """`STEPSCOPE_ENGINE_URL`"""
        return ENVIRONMENT_PREFIX + self.name.upper().replace(".", "_").replace("-", "_")


def quoted(text: str) -> str:
    """The value as an operator typed it, on one line, bounded, in double quotes."""
    shown = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    shown = shown.replace("\\", r"\\").replace('"', r"\"")
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown) + '"'


def duration_text(seconds: float) -> str:
    """Seconds in the notation that `duration` reads: 0.2 -> 200ms, 90 -> 90s, 300 -> 5m, 3600 -> 1h."""
    if seconds == 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1e3:g}ms"
    for unit in ("h", "m"):
        size = _DURATION_UNITS[unit]
        if seconds % size == 0 and seconds > 2 * 60:  # 90s and 120s read better than 1m30s and 2m
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def text(value: str) -> str:
    """Any text without line breaks or other control characters."""
    if not value.isprintable():
        raise ValueError(f"{quoted(value)} holds control characters")
    return value


def path(value: str) -> Path:
    """A path; `~` is the home directory. Whether the file is there is for its reader to say."""
    try:
        return Path(text(value)).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{quoted(value)} names a home directory that is not known") from error


def paths(value: str) -> tuple[Path, ...]:
    """Directories separated by colons."""
    return tuple(path(part) for part in value.split(":") if part)


def one_of(*choices: str) -> Callable[[str], str]:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"{quoted(value)} is not one of {', '.join(choices)}")
        return value

    return parse


def boolean(value: str) -> bool:
    """true or false (also the other spellings of YAML 1.1: yes/no, on/off)."""
    lowered = value.lower()
    if lowered in {"true", "yes", "on"}:
        return True
    if lowered in {"false", "no", "off"}:
        return False
    raise ValueError(f"{quoted(value)} is neither true nor false")


def duration(*, least: float = 0.0, most: float | None = None) -> Callable[[str], float]:
    """Seconds from a number with a unit, or several (1m30s); bounds in seconds, both allowed."""

    def parse(value: str) -> float:
        parts = _DURATION_PART.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(f"{quoted(value)} is not a duration (examples: 5s, 500ms, 1m)")
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
        if seconds < least:
            raise ValueError(f"{quoted(value)} is below the smallest allowed, {duration_text(least)}")
        if not math.isfinite(seconds) or (most is not None and seconds > most):
            raise ValueError(f"{quoted(value)} is above the largest allowed, {duration_text(most or 0.0)}")
        return seconds

    return parse


def number(
    *, above: float | None = None, least: float | None = None, most: float | None = None
) -> Callable[[str], float]:
    """A finite number in the unit that the setting's name says; `above` is an open bound, the others are closed."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            raise ValueError(f"{quoted(value)} is not a number (examples: 50, 0.9, 16.4e9)") from None
        if not math.isfinite(parsed):
            raise ValueError(f"{quoted(value)} is not a finite number")
        if above is not None and parsed <= above:
            raise ValueError(f"{quoted(value)} is not above {above:g}")
        if least is not None and parsed < least:
            raise ValueError(f"{quoted(value)} is below the smallest allowed, {least:g}")
        if most is not None and parsed > most:
            raise ValueError(f"{quoted(value)} is above the largest allowed, {most:g}")
        return parsed

    return parse


def whole_number(*, least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number, also as 377e3."""
    as_number = number(least=least, most=most)

    def parse(value: str) -> int:
        parsed = as_number(value)
        if parsed != int(parsed):
            raise ValueError(f"{quoted(value)} is not a whole number")
        return int(parsed)

    return parse


@dataclass(frozen=True, slots=True)
class Shares:
    """Names with a share each, in order; written as default=1,long=0.5."""

    pairs: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={share:g}" for name, share in self.pairs)


def shares(value: str) -> Shares:
    """NAME=SHARE pairs, separated by commas: one to eight names, each a word, each share above 0 and at most 1."""
    share_of = number(above=0, most=1)
    pairs: dict[str, float] = {}
    for part in value.split(","):
        name, separator, share = part.strip().partition("=")
        if not separator or not _NAME.fullmatch(name):
            raise ValueError(f"{quoted(part)} is not NAME=SHARE (example: default=1,long=0.5)")
        if name in pairs:
            raise ValueError(f"{quoted(name)} is named twice")
        pairs[name] = share_of(share)
    if len(pairs) > _MOST_NAMES:
        raise ValueError(f"{quoted(value)} has more than {_MOST_NAMES} names")
    return Shares(tuple(pairs.items()))


def many(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Several values, separated by commas; more than MOST_PARTS make a table that is nobody's to read."""

    def parse(value: str) -> tuple[T, ...]:
        parts = [part for part in value.split(",") if part]
        if not parts or len(parts) > MOST_PARTS:
            raise ValueError(f"{quoted(value)} is not a list of 1 to {MOST_PARTS} values, separated by commas")
        return tuple(kind(part) for part in parts)

    return parse


def optional(kind: Callable[[str], T]) -> Callable[[str], T | None]:
    """The same kind for a setting whose default is None (not given)."""
    return kind


def engine_url(value: str) -> str:
    """The engine's base URL (or its metrics page), http or https with a host; neither credentials nor a query.

    Both would be shown on /config and in logs: credentials belong into a file.
    """
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is not a URL (example: http://127.0.0.1:8000)") from None
    # The value is not repeated before this point: it may hold a password.
    if "@" in value:
        raise ValueError("holds credentials; put a token into a file and give --engine.bearer-token-file")
    if "?" in value or "#" in value:
        raise ValueError("holds a query or a fragment; give the address alone (example: http://127.0.0.1:8000)")
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise ValueError(f"{quoted(value)} is not an http or https URL with a host (example: http://127.0.0.1:8000)")
    if not value.isprintable() or " " in value or not value.isascii():
        raise ValueError(f"{quoted(value)} holds characters that no URL may hold")
    return value.rstrip("/")


def listen_address(value: str) -> str:
    """`:10094`, `127.0.0.1:10094` or `[::1]:10094`. A URL, as Kubernetes makes for service ports, is refused."""
    from stepscope.runtime import listen

    try:
        listen.parse(text(value))
    except ConfigError as error:
        # The line begins with the flag's name; the value may as well come from the environment or a file.
        raise ValueError(str(error).partition(": ")[2]) from None
    return value
