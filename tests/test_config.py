"""Settings: precedence, messages, files, environments, and running degraded."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope import config
from stepscope import settings as table
from stepscope.cli import Parser
from stepscope.errors import ConfigError
from stepscope.setting_kinds import Setting, boolean, duration, duration_text, engine_url, number, quoted

DATA = Path(__file__).parent / "config_data"

# One bad file per fault, and the whole line an operator sees. FILE stands for the path as given.
FAULTS = {
    "invalid-boolean": 'FILE:1: engine.insecure-skip-verify: "maybe" is neither true nor false',
    "invalid-calibration-twice": "FILE:3: calibration.effective-bandwidth-bytes-per-second: cannot be given together "
    "with calibration.file; both say what was calibrated",
    "invalid-calibration-without-bandwidth": "FILE:1: calibration.step-overhead-seconds: needs "
    "calibration.effective-bandwidth-bytes-per-second too",
    "invalid-choice": 'FILE:1: log.level: "verbose" is not one of debug, info, warning, error',
    "invalid-client-cert-alone": "FILE:1: engine.client-cert-file: needs engine.client-key-file too",
    "invalid-client-key-alone": "FILE:1: engine.client-key-file: needs engine.client-cert-file too",
    "invalid-control-characters": r'FILE:1: log.level: "in\nfo" is not one of debug, info, warning, error',
    "invalid-control-characters-in-text": r'FILE:1: model.id: "a\x07b" holds control characters',
    "invalid-count-fraction": 'FILE:1: hardware.count: "1.5" is not a whole number',
    "invalid-count-zero": 'FILE:1: hardware.count: "0" is below the smallest allowed, 1',
    "invalid-duplicate-key": "FILE:3: engine.url is given twice, first on line 1",
    "invalid-duplicate-key-nested": "FILE:3: engine.url is given twice, first on line 2",
    "invalid-duplicate-topic": "FILE:3: engine is given twice, first on line 1",
    "invalid-duration": 'FILE:1: sample.interval: "abc" is not a duration (examples: 5s, 500ms, 1m)',
    "invalid-duration-without-unit": 'FILE:2: sample.interval: "5" is not a duration (examples: 5s, 500ms, 1m)',
    "invalid-headroom-above-one": 'FILE:1: objective.headroom: "1.1" is above the largest allowed, 1',
    "invalid-headroom-zero": 'FILE:1: objective.headroom: "0" is not above 0',
    "invalid-interval-too-long": 'FILE:1: sample.interval: "6m" is above the largest allowed, 5m',
    "invalid-interval-too-short": 'FILE:1: sample.interval: "100ms" is below the smallest allowed, 200ms',
    "invalid-key-not-text": "FILE:1: a key must be one word, such as engine.url",
    "invalid-list-for-one-value": "FILE:1: engine.url: must be one plain value",
    "invalid-listen-port": 'FILE:1: web.listen-address: "127.0.0.1:99999": port "99999" is not a number '
    "from 0 to 65535",
    "invalid-listen-url": 'FILE:1: web.listen-address: "tcp://10.0.0.1:10094" is a URL, not an address; '
    "give HOST:PORT, for example :10094 or 127.0.0.1:10094",
    "invalid-mapping-for-list": "FILE:1: model.hf-cache: must be a list or one plain value",
    "invalid-model-twice": "FILE:2: model.id: cannot be given together with model.config; both say which model it is",
    "invalid-not-utf8": "FILE: is not valid YAML: unacceptable character #x00ff: invalid start byte",
    "invalid-object": "FILE:1: log.level: must be one plain value (and 1 more)",
    "invalid-objective-nan": 'FILE:1: objective.tokens-per-second: ".nan" is not a number (examples: 50, 0.9, 16.4e9) '
    "(and 1 more)",
    "invalid-objective-text": 'FILE:2: objective.tokens-per-second: "fast" is not a number (examples: 50, 0.9, 16.4e9)',
    "invalid-objective-zero": 'FILE:2: objective.tokens-per-second: "0" is not above 0',
    "invalid-only-outside-file": "FILE:2: config.on-error cannot be set in a file, only as flag or "
    "environment variable",
    "invalid-root-list": "FILE:1: must hold settings as key: value",
    "invalid-root-text": "FILE:1: must hold settings as key: value",
    "invalid-syntax": "FILE:2: is not valid YAML: expected ',' or '}', but got ':'",
    "invalid-tab": r"FILE:2: is not valid YAML: found character '\t' that cannot start any token",
    "invalid-timeout-not-below-interval": "FILE:2: engine.timeout: 1s is not below the interval, 1s",
    "invalid-topic-without-settings": "FILE:1: sample must hold settings, such as sample.interval",
    "invalid-two-documents": "FILE:2: is not valid YAML: but found another document",
    "invalid-unknown-key": "FILE:4: unknown key engine.ulr, did you mean engine.url?",
    "invalid-unknown-topic": "FILE:1: unknown key enigne, did you mean engine?",
    "invalid-url-credentials": "FILE:1: engine.url: holds credentials; put a token into a file and give "
    "--engine.bearer-token-file",
    "invalid-url-ftp": 'FILE:1: engine.url: "ftp://127.0.0.1:8000" is not an http or https URL with a host '
    "(example: http://127.0.0.1:8000)",
    "invalid-url-port": "FILE:1: engine.url: is not a URL (example: http://127.0.0.1:8000)",
    "invalid-url-query": "FILE:1: engine.url: holds a query or a fragment; give the address alone "
    "(example: http://127.0.0.1:8000)",
    "invalid-url-without-host": 'FILE:1: engine.url: "http://:8000" is not an http or https URL with a host '
    "(example: http://127.0.0.1:8000)",
    "invalid-url-without-scheme": 'FILE:1: engine.url: "127.0.0.1:8000" is not an http or https URL with a host '
    "(example: http://127.0.0.1:8000)",
    "invalid-window-below-interval": "FILE:3: sample.window: 10s is below the interval, 30s",
    "invalid-window-too-long": 'FILE:1: sample.window: "2h" is above the largest allowed, 1h',
}


def arguments(*flags: str, command: str = "serve") -> argparse.Namespace:
    """The namespace that the command line makes of these flags."""
    parser = Parser(allow_abbrev=False)
    config.add_arguments(parser, command)
    namespace, unknown = parser.parse_known_args(flags)
    setattr(namespace, config.UNKNOWN_ARGUMENTS, unknown)
    return namespace


def loaded(*flags: str, **environ: str) -> config.Settings:
    """Settings of `serve` from flags and environment."""
    return config.load("serve", arguments(*flags), environ)


def fault(*flags: str, **environ: str) -> str:
    """The line that these flags and variables give."""
    with pytest.raises(ConfigError) as raised:
        loaded(*flags, **environ)
    return str(raised.value)


def test_every_default_is_a_value_that_its_own_kind_accepts_when_written_as_documented() -> None:
    """So that nobody copies a default from the reference page and is refused."""
    settings = loaded()
    for setting in table.SETTINGS.values():
        assert settings.source_of(setting) == "default"
        if not setting.default_text and setting.default is not None:
            assert setting.parse(config.default_text(setting)) == settings[setting], setting.name


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    """All three are given for one setting, two for another, one for a third."""
    file = tmp_path / "stepscope.yaml"
    file.write_text("sample: {interval: 1s}\nlog: {level: debug, format: json}\n")
    variables = {"STEPSCOPE_SAMPLE_INTERVAL": "2s", "STEPSCOPE_LOG_LEVEL": "error", "STEPSCOPE_CONFIG_FILE": str(file)}
    settings = loaded("--sample.interval=3s", **variables)
    shown = settings.as_dict()
    assert shown["sample.interval"] == {"value": 3.0, "source": "flag"}
    assert shown["log.level"] == {"value": "error", "source": "environment"}
    assert shown["log.format"] == {"value": "json", "source": "file"}


def test_a_file_may_nest_and_use_dots_and_leave_values_empty() -> None:
    """Numbers, lists, words that YAML reads as booleans, and a trailing slash come out as from flags."""
    settings = loaded(f"--config.file={DATA / 'good-nested.yml'}")
    assert settings[table.ENGINE_URL] == "http://[::1]:8000"
    assert settings[table.ENGINE_FILTER] == "off"
    assert (settings[table.SAMPLE_INTERVAL], settings[table.SAMPLE_WINDOW]) == (0.5, 60.0)
    assert settings[table.MODEL_HF_CACHE] == (Path("/a"), Path("/b"))
    assert settings[table.HARDWARE_COUNT] == 4
    assert settings[table.OBJECTIVE_TOKENS_PER_SECOND] == 50.0
    assert settings.source_of(table.MODEL_ID) == settings.source_of(table.LOG_LEVEL) == "default"
    assert loaded(f"--config.file={DATA / 'empty.yml'}").as_dict()["engine.url"]["source"] == "default"


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("invalid-*.yml")))
def test_each_bad_file_gives_its_one_line(name: str) -> None:
    """The whole line is asserted: what, where, and how to set it right."""
    path = str(DATA / f"{name}.yml")
    assert fault(f"--config.file={path}").replace(path, "FILE") == FAULTS[name]


def test_every_expected_message_has_its_file() -> None:
    """A message without a file would never be checked."""
    assert set(FAULTS) == {path.stem for path in DATA.glob("invalid-*.yml")}


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Missing, a directory, too large, nested without end."""
    missing, large, deep = tmp_path / "none.yaml", tmp_path / "large.yaml", tmp_path / "deep.yaml"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    deep.write_text("[" * 100_000)
    assert fault(f"--config.file={missing}") == f"{missing}: cannot be read: No such file or directory"
    assert fault(f"--config.file={tmp_path}") == f"{tmp_path}: cannot be read: Is a directory"
    assert fault(f"--config.file={large}") == f"{large}: is larger than 1048576 bytes"
    assert fault(f"--config.file={deep}").startswith(f"{deep}: is not valid YAML: ")


def test_aliases_that_multiply_or_form_a_cycle_end_quickly(tmp_path: Path) -> None:
    """A file of a few lines must not cost memory or time without bound."""
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    bomb, cycle, long = tmp_path / "bomb.yaml", tmp_path / "cycle.yaml", tmp_path / "long.yaml"
    bomb.write_text("\n".join(lines))
    cycle.write_text("engine: &e\n  engine: *e\n  url: &u [*u]\n")
    long.write_text("\n".join(f"unknown{i}: 1" for i in range(2000)))
    start = time.monotonic()
    assert "unknown key a0" in fault(f"--config.file={bomb}")
    assert "unknown key engine.engine" in fault(f"--config.file={cycle}")
    assert fault(f"--config.file={long}").endswith("(and 19 more)")
    assert time.monotonic() - start < 5  # seconds; unbounded work would take hours


def test_wrong_flags_and_variables_are_named_as_they_were_typed() -> None:
    """Each source has its own way to say a name, and the message uses that one."""
    bad = '"abc" is not a duration (examples: 5s, 500ms, 1m)'
    assert fault("--sample.interval=abc") == f"--sample.interval: {bad}"
    assert fault(STEPSCOPE_SAMPLE_INTERVAL="abc") == f"STEPSCOPE_SAMPLE_INTERVAL: {bad}"
    assert fault("--engine.ulr=x") == "unknown flag --engine.ulr, did you mean --engine.url?"
    assert fault(STEPSCOPE_ENGINE_ULR="x") == (
        "unknown environment variable STEPSCOPE_ENGINE_ULR, did you mean STEPSCOPE_ENGINE_URL?"
    )
    assert fault("--engine.url") == fault("--engine.url=") == "--engine.url: needs a value, --engine.url=URL"
    assert fault("--log.level=info", "now") == 'unexpected argument "now"'
    assert fault("--sample.interval=abc", "--log.level=loud").endswith("(and 1 more)")


def test_an_abbreviated_flag_is_unknown() -> None:
    """Abbreviations would change their meaning when a flag is added."""
    assert fault("--engine.ur=http://a:1") == "unknown flag --engine.ur, did you mean --engine.url?"


def test_variables_of_kubernetes_services_called_stepscope_are_ignored() -> None:
    """Kubernetes sets them in each pod of the namespace, whether wanted or not."""
    services: dict[str, str] = {}
    for prefix in ("STEPSCOPE", "STEPSCOPE_METRICS", "STEPSCOPE_WEB_2"):
        services |= {
            f"{prefix}_SERVICE_HOST": "10.0.0.1",
            f"{prefix}_SERVICE_PORT": "10094",
            f"{prefix}_SERVICE_PORT_METRICS": "10094",
            f"{prefix}_PORT": "tcp://10.0.0.1:10094",
            f"{prefix}_PORT_10094_TCP": "tcp://10.0.0.1:10094",
            f"{prefix}_PORT_10094_TCP_PROTO": "tcp",
            f"{prefix}_PORT_10094_TCP_PORT": "10094",
            f"{prefix}_PORT_10094_TCP_ADDR": "10.0.0.1",
        }
    assert loaded(**services).as_dict() == loaded().as_dict()
    assert fault(STEPSCOPE_WEB_PORT="10094").startswith("unknown environment variable STEPSCOPE_WEB_PORT, ")


def test_no_service_variable_has_the_name_of_a_setting() -> None:
    """Else a Service could change what stepscope does."""
    for setting in table.SETTINGS.values():
        assert not config._SERVICE_VARIABLE.fullmatch(setting.environment_name)
        assert not config._SERVICE_PORT_VARIABLE.fullmatch(setting.environment_name)


def test_names_are_unique_in_every_spelling() -> None:
    """Two settings with one variable, or one setting that is another's topic, could not be told apart."""
    names = list(table.SETTINGS)
    constants = [value for value in vars(table).values() if isinstance(value, Setting)]
    assert len(constants) == len(names) == len({setting.environment_name for setting in table.SETTINGS.values()})
    assert not [(a, b) for a in names for b in names if b.startswith(f"{a}.")]


def test_an_empty_variable_leaves_the_setting_as_it_is() -> None:
    """Templates of pods often set variables to nothing."""
    assert loaded(STEPSCOPE_MODEL_ID="")[table.MODEL_ID] is None


def test_a_switch_needs_no_value_and_takes_one() -> None:
    """`--config.check` and `--config.check=false` both work."""
    assert loaded("--config.check")[table.CONFIG_CHECK] is True
    assert loaded("--config.check=false")[table.CONFIG_CHECK] is False
    assert loaded()[table.CONFIG_CHECK] is False


def test_a_repeatable_flag_collects_its_values() -> None:
    """Given twice, or once with colons."""
    expected = (Path("/a"), Path("/b"), Path("/c"))
    assert loaded("--model.hf-cache=/a", "--model.hf-cache=/b:/c")[table.MODEL_HF_CACHE] == expected
    assert loaded(STEPSCOPE_MODEL_HF_CACHE="/a:/b:/c")[table.MODEL_HF_CACHE] == expected


def test_defaults_follow_the_interval() -> None:
    """The deadline stays below it, the window and the hold never fall below it."""
    slow, fast = loaded("--sample.interval=5m"), loaded("--sample.interval=200ms")
    assert (slow[table.ENGINE_TIMEOUT], slow[table.SAMPLE_WINDOW], slow[table.SAMPLE_HOLD]) == (4.0, 300.0, 600.0)
    assert (fast[table.ENGINE_TIMEOUT], fast[table.SAMPLE_WINDOW], fast[table.SAMPLE_HOLD]) == (0.2 * 0.8, 30.0, 90.0)


def test_degraded_keeps_what_is_right_and_says_every_fault() -> None:
    """A sidecar that ends would hold its pod down."""
    namespace = arguments(
        "--config.on-error=degrade", "--engine.url=ftp://x", "--model.id=a/b", "--sample.interval=1s",
        "--engine.timeout=3s", "--sampel.interval=1s", f"--config.file={DATA / 'invalid-unknown-key.yml'}",
    )  # fmt: skip
    assert config.wants_degrade(namespace, {})
    settings, faults = config.degraded("serve", namespace, {"STEPSCOPE_LOG_LEVEL": "loud"})
    assert settings[table.MODEL_ID] == "a/b"
    assert settings[table.SAMPLE_INTERVAL] == 1.0
    assert settings[table.ENGINE_URL] == table.ENGINE_URL.default
    assert settings[table.ENGINE_TIMEOUT] == 0.8  # the wrong one is dropped, the default follows the interval
    assert settings[table.LOG_LEVEL] == "info"
    assert [line.split(":")[0] for line in faults if "config_data" not in line] == [
        "unknown flag --sampel.interval, did you mean --sample.interval?",
        "--engine.url",
        "STEPSCOPE_LOG_LEVEL",
        "--engine.timeout",
    ]


def test_degrading_can_be_asked_for_by_variable_and_a_flag_wins() -> None:
    """It is decided before anything is checked."""
    wanted = {"STEPSCOPE_CONFIG_ON_ERROR": "degrade"}
    assert config.wants_degrade(arguments(), wanted)
    assert not config.wants_degrade(arguments("--config.on-error=exit"), wanted)
    assert not config.wants_degrade(arguments(), {})


def test_a_file_shared_by_commands_may_hold_settings_of_another() -> None:
    """`check` in the sidecar's own pod reads the sidecar's file and environment."""
    settings = config.load("check", arguments(command="check"), {"STEPSCOPE_WEB_LISTEN_ADDRESS": ":1"})
    assert settings[table.WEB_LISTEN_ADDRESS] == ":1"
    with pytest.raises(ConfigError, match=r"^unknown flag --web\.listen-address, did you mean"):
        config.load("check", arguments("--web.listen-address=:1", command="check"), {})


def test_secrets_never_reach_a_message_or_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL with a password or a token is refused without repeating it; a secret setting is masked."""
    for url in ("http://me:hunter2@h:1", "http://h:1/?token=hunter2", "http://me:hunter2@h:99999", "me:hunter2@h"):
        assert "hunter2" not in fault(f"--engine.url={url}")
    secret = Setting("test.secret", str, "hunter2", "TEXT", "A secret.", frozenset({"serve"}), secret=True)
    monkeypatch.setitem(table.SETTINGS, secret.name, secret)
    settings = config.Settings({})
    assert settings.as_dict()["test.secret"] == {"value": "<secret>", "source": "default"}
    assert settings.as_dict(hide_secrets=False)["test.secret"]["value"] == "hunter2"


def test_the_values_for_the_configuration_page_are_plain_json() -> None:
    """Paths and tuples too."""
    shown = json.loads(json.dumps(loaded("--model.hf-cache=/a:/b", "--web.config.file=/s").as_dict()))
    assert shown["model.hf-cache"] == {"value": "/a:/b", "source": "flag"}
    assert shown["web.config.file"] == {"value": "/s", "source": "flag"}
    assert list(shown) == list(table.SETTINGS)


def test_settings_can_be_made_without_a_command_line() -> None:
    """For the demonstration and for tests."""
    settings = config.Settings.of((table.SAMPLE_INTERVAL, 1.0), (table.MODEL_ID, "a/b"))
    assert (settings[table.SAMPLE_INTERVAL], settings[table.ENGINE_TIMEOUT], settings[table.MODEL_ID]) == (
        1.0,
        0.8,
        "a/b",
    )


@given(st.integers(0, 3_600_000))
def test_a_duration_survives_being_written_and_read(milliseconds: int) -> None:
    """What a message or the reference shows can be typed back."""
    seconds = milliseconds / 1000
    assert duration()(duration_text(seconds)) == pytest.approx(seconds, rel=1e-5)


@given(st.text())
def test_any_text_is_either_a_value_or_one_line(value: str) -> None:
    """No kind ends in another error, and no message breaks the line."""
    messages = []
    for setting in table.SETTINGS.values():
        try:
            setting.parse(value)
        except ValueError as error:
            messages.append(str(error))
    assert all(message.isprintable() and len(message) < 400 for message in messages), messages


@pytest.mark.parametrize("value", ["http://a", "https://a.b:1/x", "http://[::1]:8000", "http://127.0.0.1:8000/metrics"])
def test_urls_of_engines_are_taken_as_they_are(value: str) -> None:
    """Names, addresses of both kinds, with and without a path."""
    assert engine_url(value) == engine_url(f"{value}/") == value


def test_words_for_true_and_false() -> None:
    """The spellings that YAML 1.1 knows."""
    assert [boolean(word) for word in ("true", "Yes", "ON", "false", "no", "Off")] == [True] * 3 + [False] * 3


def test_compound_durations_add_up() -> None:
    """As Prometheus writes them."""
    assert duration()("1h1m30s500ms") == 3690.5


def test_long_values_are_cut_in_messages() -> None:
    """One line stays one line on a terminal."""
    assert quoted("x" * 500) == '"' + "x" * 57 + '..."'
    with pytest.raises(ValueError, match=r'^"1{57}\.\.\." is not a finite number$'):
        number()("1" * 500)
