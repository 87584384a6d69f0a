"""The flags that only `stepscope plan` has: what is to be served, how well the GPU is used, and what it costs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope import setting_kinds as kinds
from stepscope.core.plan_demand import ContextClass
from stepscope.errors import ConfigError

UTILIZATION = 0.9  # of the worked example in docs/physics.md; vLLM 0.32.0's own default is 0.92 (config/cache.py)
CHUNK_TOKENS = 2048.0  # vLLM 0.32.0 below 70 GiB and on A100 (engine/arg_utils.py); 8,192 on H100, 16,384 on B200
RESERVE = 0.25  # middle of the 20 to 30 % that a plan should keep on the peak
_PART = re.compile(r"(?P<requests>[^x]+)x(?P<tokens>[^x]+)")


def _context_class(value: str) -> ContextClass:
    match = _PART.fullmatch(value)
    if match is None:
        raise ValueError(f"{kinds.quoted(value)} is not REQUESTSxTOKENS (example: 40x2000,2x100000)")
    return ContextClass(kinds.number(above=0, most=1e6)(match["requests"]), _tokens(match["tokens"]))


_tokens = kinds.number(least=0, most=1e9)
_count = kinds.whole_number(least=1)
_share = kinds.number(above=0, most=1)
_efficiency = kinds.number(least=0.001, most=1)  # below is a slip of units
_price = kinds.number(least=1e-6, most=1e9)


def _requests(value: str) -> int:
    count = _count(value)
    if count > 10**6:
        raise ValueError(f"{kinds.quoted(value)} is above the largest allowed, 1e+06")
    return count


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    default: Any = None


# fmt: off
FLAGS = (
    _Flag("model.params", kinds.number(above=0, most=1e16), "COUNT",
          "parameters that work on one token; 2 bytes each where no weight bytes are known"),
    _Flag("context-tokens", _tokens, "TOKENS", "context of each request while it decodes"),
    _Flag("mix", kinds.many(_context_class), "NxTOKENS,...",
          "the peak to be served, several kinds of requests: 40x2000,2x100000; instead of --context-tokens"),
    _Flag("concurrency", kinds.many(_requests), "N,...",
          "requests at once to tabulate. Default: 1, 2, 4 ... and the mix"),
    _Flag("utilization", _share, "RATIO", "share of the GPU memory that the engine may use", UTILIZATION),
    _Flag("runtime-overhead-bytes", kinds.number(least=0), "BYTES",
          "memory per GPU beside weights and KV: activations, CUDA graphs, libraries. Default: 0, which data sheets' "
          "round memory about makes up for; 5.2e9, which vLLM engines printed at most, for the low end"),
    _Flag("bandwidth-efficiency", _efficiency, "RATIO",
          "share of the peak bandwidth that reads reach; replaces the data-sheet defaults, their overheads included"),
    _Flag("decode-efficiency", _efficiency, "RATIO", "share of the peak FLOP/s that decoding reaches"),
    _Flag("prefill-efficiency", _efficiency, "RATIO", "share of the peak FLOP/s that prompts reach"),
    _Flag("prompt-tokens", _tokens, "TOKENS",
          "tokens computed for a new request, without prefix cache hits. Default: each kind's context, less half of "
          "--output-tokens"),
    _Flag("output-tokens", kinds.number(least=1, most=1e9), "TOKENS",
          "tokens generated for a request; with it each step carries the prompts of others, as in a steady state"),
    _Flag("prefill-tokens-per-step", _tokens, "TOKENS",
          "prompt tokens of others in each step, at most a chunk; instead of the above"),
    _Flag("chunk-tokens", kinds.number(least=1, most=1e9), "TOKENS",
          "largest prompt chunk of a step, as vLLM's --max-num-batched-tokens", CHUNK_TOKENS),
    _Flag("max-num-seqs", _count, "COUNT", "requests that the engine runs at once, as vLLM's flag of that name"),
    _Flag("reserve", kinds.number(least=0, most=10), "RATIO", "added to the peak before GPUs are counted", RESERVE),
    _Flag("gpu-price-per-hour", _price, "PRICE", "price of one GPU for one hour"),
    _Flag("currency", kinds.text, "NAME", "currency of the price, for the report", ""),
    _Flag("tokens-per-second", kinds.many(_price), "N,...",
          "rates of generated tokens to price, beside the planned ones"),
    _Flag("daily-users", kinds.many(_price), "N,...", "users a day, for the table of peaks; needs --output-tokens"),
    _Flag("requests-per-user", _price, "N", "requests of one user in a day", 1.0),
    _Flag("peak-share", _share, "RATIO",
          "share of the day's requests that fall into the peak; 1: all of them, the worst case", 1.0),
    _Flag("peak-duration", kinds.many(kinds.duration(least=1.0, most=86400.0)), "DURATION,...", "lengths of the peak",
          (3600.0, 4 * 3600.0, 8 * 3600.0)),
)
# fmt: on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags, values as text: all messages come from `read`."""
    group = parser.add_argument_group("plan")
    for flag in FLAGS:
        shown = ",".join(map(kinds.duration_text, flag.default)) if isinstance(flag.default, tuple) else flag.default
        text = flag.help + ("" if flag.default in (None, "") else f". Default: {shown}")
        group.add_argument(
            f"--{flag.name}", dest=flag.name, metavar=flag.metavar, action="append", help=text.replace("%", "%%")
        )
    group.add_argument("--json", action="store_true", help="print JSON")
    group.add_argument("--markdown", action="store_true", help="print Markdown tables")
    group.add_argument("--plot", metavar="FILE", help="also draw speed and budget over concurrency (SVG)")


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The parsed values by name, without dashes."""

    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read(args: argparse.Namespace) -> PlanFlags:
    """The values. Raises ConfigError, one line that names the flag."""
    values: dict[str, Any] = {}
    for flag in FLAGS:
        texts = getattr(args, flag.name, None) or []
        if len(texts) > 1:
            raise ConfigError(f"--{flag.name}: given {len(texts)} times; several values go into one, with commas")
        try:
            values[flag.name] = flag.parse(texts[0]) if texts else flag.default
        except ValueError as error:
            raise ConfigError(f"--{flag.name}: {error}") from None
    if values["mix"] is not None and values["context-tokens"] is not None:
        raise ConfigError("--mix: cannot be given together with --context-tokens; both say how long contexts are")
    if values["mix"] is None and values["context-tokens"] is None:
        raise ConfigError("plan needs --context-tokens, or --mix for several kinds of requests")
    prompt, longest = values["prompt-tokens"], _longest(values)
    if prompt is not None and prompt > longest:
        raise ConfigError(
            f"--prompt-tokens: {prompt:.0f} is more than the longest context, {longest:.0f}, which contains it"
        )
    _check_output(values)
    if values["output-tokens"] is not None and values["prefill-tokens-per-step"] is not None:
        raise ConfigError("--prefill-tokens-per-step: cannot be given together with --output-tokens")
    if (values["prefill-tokens-per-step"] or 0.0) > values["chunk-tokens"]:
        raise ConfigError(
            f"--prefill-tokens-per-step: {values['prefill-tokens-per-step']:.0f} is more than a step takes, "
            f"--chunk-tokens={values['chunk-tokens']:.0f}"
        )
    if values["daily-users"] is not None and values["output-tokens"] is None:
        raise ConfigError("--daily-users: needs --output-tokens, to know how long a request takes")
    if values["tokens-per-second"] is not None and values["gpu-price-per-hour"] is None:
        raise ConfigError("--tokens-per-second: needs --gpu-price-per-hour")
    if args.json and args.markdown:
        raise ConfigError("--markdown: cannot be given together with --json")
    if args.plot is not None and not Path(args.plot).parent.is_dir():
        raise ConfigError(f"--plot: the folder of {kinds.quoted(args.plot)} is not there")
    if args.plot is not None and Path(args.plot).suffix.lower() not in ("", ".svg"):
        raise ConfigError(f"--plot: writes SVG: {kinds.quoted(args.plot)} should end in .svg")
    return PlanFlags(values)


def _longest(values: dict[str, Any]) -> float:
    mix = values["mix"]
    return float(max(part.tokens for part in mix) if mix is not None else values["context-tokens"])


def _check_output(values: dict[str, Any]) -> None:
    """A request that ends after so many generated tokens has half of them in its context on average."""
    output, prompt = values["output-tokens"], values["prompt-tokens"]
    if output is None:
        return
    shortest = float(min(part.tokens for part in values["mix"]) if values["mix"] else values["context-tokens"])
    if prompt is None and output / 2.0 >= shortest:
        raise ConfigError(
            f"--output-tokens: {output:.0f} generated tokens make {output / 2.0:.0f} of a mean context by themselves; "
            f"one of {shortest:.0f} leaves no prompt"
        )
    if prompt is not None and prompt + output / 2.0 > _longest(values) + 1.0:  # a token for rounding
        raise ConfigError(
            f"--output-tokens: a prompt of {prompt:.0f} and half of {output:.0f} generated tokens are more than the "
            f"longest mean context, {_longest(values):.0f}"
        )
