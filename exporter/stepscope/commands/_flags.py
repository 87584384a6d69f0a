"""Reads the flags that only one command has; those of the settings table come through config.load."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from stepscope.errors import ConfigError


def read_flag(args: argparse.Namespace, name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
    """The value of a flag, or its default where it was not given. Raises ConfigError naming the flag."""
    given = getattr(args, name)
    if given is None:
        return default
    try:
        return kind(given)
    except ValueError as error:
        raise ConfigError(f"--{name.replace('_', '-')}: {error}") from None
