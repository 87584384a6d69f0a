"""The command line: finds the command, imports only that one, and turns every fault into one line and an exit status.

A command is a module `stepscope.commands.NAME` with HELP (one line), `add_arguments(parser)` and `run(args) -> int`.
Exit status: 0 done, 1 done with a bad result, 2 wrong arguments or settings, 130 interrupted, 141 reader went away.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stepscope import __version__
from stepscope.errors import ConfigError, StepscopeError
from stepscope.stop_signals import end_at_once

COMMANDS = {
    "serve": "Watch one engine and publish measured against predicted step time.",
    "check": "Scrape the engine twice and report what was found, assumed and missing.",
    "fit": "Fit the step law to measured loads and judge it on others.",
    "calibrate": "Measure the step law of an idle engine and write calibration.yaml.",
    "bench": "Put load on an engine and set what it did beside what the step law predicts.",
    "plan": "Plan capacity: what fits, what binds, how fast, how many GPUs, at what cost.",
    "demo": "Show the main job on the embedded simulator; needs no GPU.",
    "sim": "Run a simulated vLLM server, with load and faults on demand.",
}

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_USAGE = "usage: stepscope [--version] [--help] COMMAND [FLAGS]"
# prometheus_client decides at import time to keep its values in files of this directory. In a pod, the variable may be
# the engine's; our values would then mix with the engine's own.
_MULTIPROCESS_VARIABLES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class _HelpFormatter(argparse.HelpFormatter):
    """Shows `--engine.url=URL`, as one types it, and switches bare."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=6, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        takes_value = action.option_strings and action.nargs != 0 and action.const != "true"
        if not takes_value:
            return super()._format_action_invocation(action) if action.nargs == 0 else action.option_strings[-1]
        return f"{action.option_strings[-1]}={action.metavar or action.dest.upper()}"


class Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing its usage and ending the program."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name); returns the exit status, whatever happens."""
    for variable in _MULTIPROCESS_VARIABLES:
        os.environ.pop(variable, None)
    if argv is None and sys.argv[1:2] == ["serve"]:  # the process is ours, and may be the first of its container
        end_at_once()
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # None where the program was started with standard output closed
            sys.stdout.flush()  # here, so that a reader who went away is noticed inside the try
        return status
    except StepscopeError as error:
        print(f"stepscope: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at its end; into nothing, or it would complain about the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser of one command, with its module imported."""
    module = importlib.import_module(f"stepscope.commands.{command}")
    parser = Parser(prog=f"stepscope {command}", description=module.HELP, usage=f"stepscope {command} [FLAGS]",
                    formatter_class=_HelpFormatter, allow_abbrev=False)  # fmt: skip
    parser.set_defaults(run=module.run)
    module.add_arguments(parser)
    return parser


def overview() -> str:
    """What `stepscope --help` says."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            _USAGE,
            "",
            "Is the decode step of an LLM engine as slow as physics says it must be, and if not, why?",
            "",
            "commands:",
            *lines,
            "",
            "stepscope COMMAND --help lists the flags of a command.",
        ]
    )


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(overview(), file=sys.stderr)
        return EXIT_ERROR
    command, *rest = arguments
    if command in {"-h", "--help", "help"}:
        print(overview())
        return 0
    if command in {"-V", "--version", "version"}:
        print(f"stepscope {__version__}")
        return 0
    if command not in COMMANDS:
        from stepscope.config import unknown_key

        kind = "flag" if command.startswith("-") else "command"
        known = ["--version", "--help"] if kind == "flag" else list(COMMANDS)
        raise ConfigError(f"{unknown_key(kind, command, known)} (stepscope --help lists them)")
    parser = parser_of(command)
    try:
        namespace, unknown = parser.parse_known_args(rest)
    except SystemExit as stop:  # --help has printed its text
        return int(stop.code or 0)
    if unknown:
        _leave_or_refuse(command, parser, namespace, unknown)
    return int(namespace.run(namespace))


def _leave_or_refuse(
    command: str, parser: argparse.ArgumentParser, namespace: argparse.Namespace, unknown: list[str]
) -> None:
    """A command that may run degraded is told of what no flag took; for any other it is the end."""
    from stepscope import config
    from stepscope.setting_kinds import quoted
    from stepscope.settings import CONFIG_ON_ERROR

    if command in CONFIG_ON_ERROR.commands and config.wants_degrade(namespace, os.environ):
        setattr(namespace, config.UNKNOWN_ARGUMENTS, unknown)
        return
    flag = next((argument for argument in unknown if argument.startswith("-")), None)
    if flag is None:
        raise ConfigError(f"unexpected argument {quoted(unknown[0])}")
    raise ConfigError(config.unknown_key("flag", flag.partition("=")[0], _flags(parser)))


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
