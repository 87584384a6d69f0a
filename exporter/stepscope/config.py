"""Settings from flags, environment and file, in this order of precedence, checked one by one and together.

    parser: config.add_arguments(parser, "serve")
    values: settings = config.load("serve", arguments, os.environ); settings[ENGINE_URL]

Every message is one line that names the source: a flag, a variable, or a file and its line.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from stepscope import settings as table
from stepscope.errors import ConfigError
from stepscope.setting_kinds import ENVIRONMENT_PREFIX, Setting, duration_text, quoted
from stepscope.settings import SETTINGS

T = TypeVar("T")
Source = Literal["flag", "environment", "file", "default"]

UNKNOWN_ARGUMENTS = "unknown_arguments"  # where the command line leaves what no flag took, in the namespace
_GIVEN_WITHOUT_VALUE = ""

# Variables that Kubernetes sets for every Service of the namespace, here of one whose name begins with "stepscope":
# NAME_SERVICE_HOST, NAME_SERVICE_PORT, NAME_SERVICE_PORT_<port name>,
# NAME_PORT_<number>_<protocol>, the same with _ADDR, _PORT or _PROTO.
_SERVICE_VARIABLE = re.compile(
    r"STEPSCOPE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)"
)
_SERVICE_PORT_VARIABLE = re.compile(r"STEPSCOPE(_[A-Z0-9_]+)?_PORT")  # its value is a URL: tcp://10.0.0.1:80
_SERVICE_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://")
_NOT_SETTINGS = frozenset({"STEPSCOPE_SHARED", "STEPSCOPE_REQUIRE_TOOLS"})  # the test suite's own


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one setting as given, and the words that name its place in a message."""

    text: str
    source: Source
    place: str


class Settings:
    """The values of one run; immutable. `settings[ENGINE_URL]` has the type of the row in the table."""

    __slots__ = ("_sources", "_values")

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, Source] | None = None) -> None:
        """`values`: by name, only those that are not default."""
        self._values: dict[str, Any] = {}
        self._sources: dict[str, Source] = dict(sources or {})
        for name, setting in SETTINGS.items():
            self._values[name] = values.get(name, setting.default)
        for name, setting in SETTINGS.items():
            if setting.derive is not None and name not in values:
                self._values[name] = setting.derive(self)

    @classmethod
    def of(cls, *pairs: tuple[Setting[Any], Any]) -> Settings:
        """Defaults with some values replaced, for a program or a test that has no command line."""
        return cls({setting.name: value for setting, value in pairs}, {setting.name: "flag" for setting, _ in pairs})

    def without(self, *left_out: Setting[Any]) -> Settings:
        """The same with some settings at their defaults."""
        names = {setting.name for setting in left_out}
        kept = {name: self._values[name] for name in self._sources if name not in names}
        return Settings(kept, {name: source for name, source in self._sources.items() if name not in names})

    def __getitem__(self, setting: Setting[T]) -> T:
        value: T = self._values[setting.name]
        return value

    def source_of(self, setting: Setting[Any]) -> Source:
        """Where the value came from."""
        return self._sources.get(setting.name, "default")

    def as_dict(self, *, hide_secrets: bool = True) -> dict[str, dict[str, Any]]:
        """name -> {value, source} with plain JSON values, in the table's order; for /config and for logs."""
        return {
            name: {
                "value": "<secret>" if hide_secrets and setting.secret else _plain(self._values[name]),
                "source": self.source_of(setting),
            }
            for name, setting in SETTINGS.items()
        }


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Give `parser` the flags of one command, grouped by the first word of their names.

    Values stay text and a missing value is accepted here, so that all messages come from `load`.
    """
    groups: dict[str, Any] = {}
    for setting in settings_of(command):
        topic = setting.name.partition(".")[0]
        group = groups.get(topic) or groups.setdefault(topic, parser.add_argument_group(topic))
        default = default_text(setting)
        group.add_argument(
            setting.flag,
            dest=setting.name,
            metavar=setting.metavar,
            nargs="?",
            const="true" if setting.is_switch else _GIVEN_WITHOUT_VALUE,
            action="append" if setting.repeatable else "store",
            help=(setting.help + (f" Default: {default}." if default else "")).replace("%", "%%"),
        )


def settings_of(command: str) -> list[Setting[Any]]:
    """The rows of the table whose flags the command takes."""
    return [setting for setting in SETTINGS.values() if command in setting.commands]


def default_text(setting: Setting[Any]) -> str:
    """The default as documentation says it; empty where there is none."""
    if setting.default_text or setting.default is None:
        return setting.default_text
    if setting.metavar == "DURATION":
        return duration_text(setting.default)
    if isinstance(setting.default, float) and setting.default.is_integer():
        return str(int(setting.default))
    return str(_plain(setting.default)).lower() if isinstance(setting.default, bool) else str(_plain(setting.default))


def load(command: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """All settings of a run. Raises ConfigError: the first fault, and how many more there are."""
    settings, faults = degraded(command, arguments, environ)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ConfigError(faults[0] + more)
    return settings


def wants_degrade(arguments: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Whether --config.on-error=degrade was asked for (flag or environment; needed before anything is checked)."""
    setting = table.CONFIG_ON_ERROR
    given = getattr(arguments, setting.name, None)
    return (environ.get(setting.environment_name) if given is None else given) == "degrade"


def degraded(
    command: str, arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[Settings, tuple[str, ...]]:
    """The settings that are valid, defaults for the others, and one line for each fault. Never raises ConfigError."""
    faults: list[str] = []
    texts: dict[str, Text] = {}
    flags = dict(_from_flags(command, arguments, faults))
    variables = dict(_from_environment(environ, faults))
    file = flags.get(table.CONFIG_FILE.name) or variables.get(table.CONFIG_FILE.name)
    if file is not None and file.text:
        from stepscope.config_file import read_texts

        texts.update(read_texts(file.text, faults))
    texts.update(variables)
    texts.update(flags)

    values: dict[str, Any] = {}
    for name, given in texts.items():
        try:
            values[name] = SETTINGS[name].parse(given.text)
        except ValueError as error:
            faults.append(f"{given.place}: {error}")
    for check in _JOINT_CHECKS:
        for setting, reason in check(Settings(values), values):
            faults.append(f"{texts[setting.name].place}: {reason}")
            values.pop(setting.name, None)
    sources = {name: texts[name].source for name in values}
    return Settings(values, sources), tuple(faults)


def unknown_key(kind: str, key: str, known: Iterator[str] | list[str]) -> str:
    """`unknown key engine.ulr, did you mean engine.url?`"""
    import difflib

    nearest = difflib.get_close_matches(key, list(known), n=1, cutoff=0.0)
    shown = key if key.isprintable() and len(key) <= 60 else quoted(key)
    return f"unknown {kind} {shown}" + (f", did you mean {nearest[0]}?" if nearest else "")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ":".join(str(part) for part in value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _from_flags(command: str, arguments: argparse.Namespace, faults: list[str]) -> Iterator[tuple[str, Text]]:
    flags = [setting.flag for setting in settings_of(command)]
    for argument in getattr(arguments, UNKNOWN_ARGUMENTS, ()):
        if argument.startswith("-"):
            faults.append(unknown_key("flag", argument.partition("=")[0], flags))
        elif not faults:  # after an unknown flag it is most likely that flag's value
            faults.append(f"unexpected argument {quoted(argument)}")
    for setting in settings_of(command):
        given = getattr(arguments, setting.name, None)
        if given is None:
            continue
        text = ":".join(given) if isinstance(given, list) else given
        if text == _GIVEN_WITHOUT_VALUE:
            faults.append(f"{setting.flag}: needs a value, {setting.flag}={setting.metavar}")
        else:
            yield setting.name, Text(text, "flag", setting.flag)


def _from_environment(environ: Mapping[str, str], faults: list[str]) -> Iterator[tuple[str, Text]]:
    names = {setting.environment_name: setting.name for setting in SETTINGS.values()}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable in names:
            if text:  # an empty variable is one that somebody meant to unset
                yield names[variable], Text(text, "environment", variable)
        elif not (
            variable in _NOT_SETTINGS
            or _SERVICE_VARIABLE.fullmatch(variable)
            or (_SERVICE_PORT_VARIABLE.fullmatch(variable) and _SERVICE_PORT_VALUE.match(text))
        ):
            faults.append(unknown_key("environment variable", variable, list(names)))


JointCheck = Callable[[Settings, Mapping[str, Any]], Iterator[tuple[Setting[Any], str]]]


def _times_fit(settings: Settings, given: Mapping[str, Any]) -> Iterator[tuple[Setting[Any], str]]:
    interval = settings[table.SAMPLE_INTERVAL]
    if table.ENGINE_TIMEOUT.name in given and settings[table.ENGINE_TIMEOUT] >= interval:
        deadline = duration_text(settings[table.ENGINE_TIMEOUT])
        yield table.ENGINE_TIMEOUT, f"{deadline} is not below the interval, {duration_text(interval)}"
    if table.SAMPLE_WINDOW.name in given and settings[table.SAMPLE_WINDOW] < interval:
        window = duration_text(settings[table.SAMPLE_WINDOW])
        yield table.SAMPLE_WINDOW, f"{window} is below the interval, {duration_text(interval)}"
    usual, longest = settings[table.ADMISSION_DEFAULT_TTL], settings[table.ADMISSION_LONGEST_TTL]
    if table.ADMISSION_DEFAULT_TTL.name in given and usual > longest:
        limit = f"{table.ADMISSION_LONGEST_TTL.name}, {duration_text(longest)}"
        yield table.ADMISSION_DEFAULT_TTL, f"{duration_text(usual)} is above {limit}"


def _alternatives_exclude_each_other(_: Settings, given: Mapping[str, Any]) -> Iterator[tuple[Setting[Any], str]]:
    if table.MODEL_ID.name in given and table.MODEL_CONFIG.name in given:
        yield table.MODEL_ID, "cannot be given together with model.config; both say which model it is"
    numbers = (
        table.CALIBRATION_EFFECTIVE_BANDWIDTH,
        table.CALIBRATION_STEP_OVERHEAD,
        table.CALIBRATION_SEQUENCE_COST,
        table.CALIBRATION_PREFILL_COST,
    )
    for setting in numbers:
        if setting.name in given and table.CALIBRATION_FILE.name in given:
            yield setting, "cannot be given together with calibration.file; both say what was calibrated"
        elif setting.name in given and numbers[0].name not in given:
            yield setting, f"needs {numbers[0].name} too"


def _pairs_are_complete(_: Settings, given: Mapping[str, Any]) -> Iterator[tuple[Setting[Any], str]]:
    pair = (table.ENGINE_CLIENT_CERT_FILE, table.ENGINE_CLIENT_KEY_FILE)
    for one, other in (pair, pair[::-1]):
        if one.name in given and other.name not in given:
            yield one, f"needs {other.name} too"


_JOINT_CHECKS: tuple[JointCheck, ...] = (_times_fit, _alternatives_exclude_each_other, _pairs_are_complete)
