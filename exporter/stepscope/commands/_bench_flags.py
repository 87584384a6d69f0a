"""The flags that only `stepscope bench` has: which loads, how many requests, and where the results go."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope import setting_kinds as kinds
from stepscope.commands._flags import read_flag
from stepscope.errors import ConfigError
from stepscope.runtime.load_crew import Work

MOST_TOKENS = 10_000_000  # the longest context that a public model claims (Llama 4 Scout); prompts are built in memory
MAX_STREAMS = 1024  # threads of one process; each holds a connection
_PART = re.compile(r"(\d+)x(\d+)")
_CONCURRENCY, _INPUT_TOKENS, _OUTPUT_TOKENS, _MAX_SECONDS = "1,8,32", "512", 128, 600.0
_REQUESTS_PER_STREAM = 2  # where --requests is not given: each stream is replaced once


@dataclass(frozen=True, slots=True)
class Row:
    """One load to put on the engine. streams_asked: --concurrency, which may be more than there are requests for."""

    name: str
    works: tuple[Work, ...]
    is_mix: bool = False
    streams_asked: int = 0

    @property
    def mean_input_tokens(self) -> float:
        """Prompt tokens, mean over the streams."""
        return sum(work.prompt_tokens for work in self.works) / len(self.works)

    @property
    def longest_tokens(self) -> int:
        """Prompt and output of the longest request."""
        return max(work.prompt_tokens + work.output_tokens for work in self.works)


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags as read. requests: per row; None: twice the concurrency. mix: (streams, prompt tokens) by class."""

    concurrency: tuple[int, ...]
    input_tokens: tuple[int, ...]
    output_tokens: int
    requests: int | None
    mix: tuple[tuple[int, int], ...]
    max_seconds: float
    gpu_price_per_hour: float | None
    currency: str
    points_output: Path | None
    csv: Path | None
    json: bool


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Values stay text: `read_flags` checks them."""
    add = parser.add_argument_group("load").add_argument
    add("--concurrency", metavar="N,...", help=f"requests at once, a row each. Default: {_CONCURRENCY}.")
    add("--requests", metavar="N", help="requests of a row. Default: twice the concurrency.")
    add("--input-tokens", metavar="A,...", help=f"prompt lengths, a row each. Default: {_INPUT_TOKENS}.")
    add("--output-tokens", metavar="M", help=f"tokens asked for by each request. Default: {_OUTPUT_TOKENS}.")
    add("--mix", metavar="NxTOKENS,...", help=(
        "several kinds of streams at once, one row: 40x2000,2x100000; instead of --concurrency and --input-tokens"
    ))  # fmt: skip
    add("--max-seconds", metavar="SECONDS", help=f"end of everything. Default: {_MAX_SECONDS:g}.")
    add("--wait", action="store_true", help="wait, within the time, for a busy engine to become idle")
    add("--gpu-price-per-hour", metavar="PRICE", help="of one GPU; gives the cost per million tokens")
    add("--currency", metavar="NAME", help="of the price. Default: USD.")
    add("--points-output", metavar="FILE", help="also write the rows as lines of JSON, for stepscope fit --points")
    add("--csv", metavar="FILE", help="also write the rows as CSV")
    add("--json", action="store_true", help="report as JSON")


def read_flags(args: argparse.Namespace) -> Flags:
    """Raises ConfigError naming the flag."""

    def read(name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
        return read_flag(args, name, kind, default)

    count = kinds.whole_number(least=1)
    tokens = _tokens(1)
    mix = read("mix", kinds.many(_part), ())
    for other in ("concurrency", "input_tokens") if mix else ():
        if getattr(args, other) is not None:
            raise ConfigError(f"--mix: goes without --{other.replace('_', '-')}")
    if sum(streams for streams, _ in mix) > MAX_STREAMS:
        raise ConfigError(f"--mix: more than {MAX_STREAMS} streams")
    return Flags(
        concurrency=read("concurrency", kinds.many(_streams), kinds.many(_streams)(_CONCURRENCY)),
        input_tokens=read("input_tokens", kinds.many(tokens), kinds.many(tokens)(_INPUT_TOKENS)),
        output_tokens=read("output_tokens", _tokens(2), _OUTPUT_TOKENS),
        requests=read("requests", count),
        mix=mix,
        max_seconds=read("max_seconds", kinds.number(least=1, most=86400), _MAX_SECONDS),
        gpu_price_per_hour=read("gpu_price_per_hour", kinds.number(above=0)),
        currency=read("currency", kinds.text, "USD"),
        points_output=_writable("points_output", read("points_output", kinds.path)),
        csv=_writable("csv", read("csv", kinds.path)),
        json=args.json,
    )


def rows_of(flags: Flags) -> Iterator[Row]:
    """The loads, one after another; a mix is one."""
    out = flags.output_tokens
    if flags.mix:
        streams = sum(count for count, _ in flags.mix)
        each = max(1, -(-(flags.requests or 0) // streams))
        works = [Work(tokens, out, each, label=str(tokens)) for count, tokens in flags.mix for _ in range(count)]
        yield Row("+".join(f"{count}x{tokens}" for count, tokens in flags.mix), tuple(works), is_mix=True)
        return
    for tokens in flags.input_tokens:
        for streams in flags.concurrency:
            total = flags.requests or _REQUESTS_PER_STREAM * streams
            share, more = divmod(total, streams)
            works = [Work(tokens, out, share + (number < more)) for number in range(min(streams, total))]
            yield Row(f"{len(works)}x{tokens}", tuple(works), streams_asked=streams)  # as many as there are


def _tokens(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        count = kinds.whole_number(least=least)(value)
        if count > MOST_TOKENS:
            raise ValueError(f"{kinds.quoted(value)} is above the largest allowed, {MOST_TOKENS}")
        return count

    return parse


def _streams(value: str) -> int:
    count = kinds.whole_number(least=1)(value)
    if count > MAX_STREAMS:
        raise ValueError(f"{kinds.quoted(value)} is above the largest allowed, {MAX_STREAMS}")
    return count


def _part(value: str) -> tuple[int, int]:
    found = _PART.fullmatch(value)
    if found is None or not int(found[1]) or not int(found[2]):
        raise ValueError(f"{kinds.quoted(value)} is not STREAMSxTOKENS (example: 40x2000,2x100000)")
    return int(found[1]), _tokens(1)(found[2])


def _writable(flag: str, path: Path | None) -> Path | None:
    """Checked before the load: an hour's figures must not meet a folder that is not there."""
    name = f"--{flag.replace('_', '-')}"
    if path is None:
        return None
    if not path.parent.is_dir():
        raise ConfigError(f"{name}: {path.parent} is not a directory")
    if path.is_dir():
        raise ConfigError(f"{name}: {path} is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{name}: {path} may not be written")
    return path
