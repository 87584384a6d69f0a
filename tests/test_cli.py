"""The command line: what a user sees, exit statuses, and what is not imported."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from stepscope import __version__, cli, commands, config
from stepscope import settings as table
from stepscope.errors import ConfigError, FactError

Run = Callable[[argparse.Namespace], int]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Installs a command called `probe` with the flags of `check` that does what it is given."""

    def install(run: Run) -> None:
        module = ModuleType("stepscope.commands.probe")
        module.HELP = "A command of this test."  # type: ignore[attr-defined]  # modules take any attribute
        module.add_arguments = lambda parser: config.add_arguments(parser, "check")  # type: ignore[attr-defined]
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "probe", module.HELP)

    return install


def stepscope(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the real program in its own process."""
    return subprocess.run(
        [sys.executable, "-m", "stepscope", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **(environ or {})},
    )


def test_the_table_of_commands_is_the_folder_of_commands() -> None:
    """A command that is not listed cannot be found; one that is listed must exist."""
    found = {module.name for module in pkgutil.iter_modules(commands.__path__) if not module.name.startswith("_")}
    assert set(cli.COMMANDS) == found


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_prints_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line fits a terminal, and each flag of the settings table is there."""
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert importlib.import_module(f"stepscope.commands.{command}").HELP in " ".join(shown.out.split())
    for setting in config.settings_of(command):
        assert f"  {setting.flag}" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100


def test_help_lists_the_commands_and_version_says_the_version() -> None:
    """In the real program, on standard output, with status 0."""
    shown = stepscope("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(name in shown.stdout and text in shown.stdout for name, text in cli.COMMANDS.items())
    version = stepscope("--version")
    assert (version.returncode, version.stdout) == (0, f"stepscope {__version__}\n")


def test_without_a_command_the_help_goes_to_standard_error() -> None:
    """A pipe that waits for data gets none."""
    shown = stepscope()
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == cli.overview() + "\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sreve"], "stepscope: unknown command sreve, did you mean serve? (stepscope --help lists them)"),
        (["--verison"], "stepscope: unknown flag --verison, did you mean --version? (stepscope --help lists them)"),
    ],
)
def test_a_slip_of_the_finger_is_named_with_the_nearest_valid_word(arguments: list[str], line: str) -> None:
    """One line, status 2, no traceback."""
    shown = stepscope(*arguments)
    assert (shown.returncode, shown.stdout, shown.stderr) == (2, "", line + "\n")


def test_unknown_flags_of_a_command_are_named(probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    """The flag's own value is not mistaken for the fault."""
    probe(lambda _: pytest.fail("the command must not run"))
    assert cli.main(["probe", "--engine.ulr", "http://a:1"]) == 2
    assert cli.main(["probe", "now"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "stepscope: unknown flag --engine.ulr, did you mean --engine.url?",
        'stepscope: unexpected argument "now"',
    ]


def test_a_command_that_may_run_degraded_is_told_of_unknown_flags(
    probe: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injected sidecar must not end because of a flag that this version does not know."""
    seen: list[list[str]] = []

    def run(namespace: argparse.Namespace) -> int:
        seen.append(getattr(namespace, config.UNKNOWN_ARGUMENTS))
        return 0

    probe(run)
    on_error = table.CONFIG_ON_ERROR
    monkeypatch.setitem(sys.modules, "stepscope.commands.serve", sys.modules["stepscope.commands.probe"])
    monkeypatch.setenv(on_error.environment_name, "degrade")
    assert cli.main(["serve", "--new.flag=1"]) == 0
    assert seen == [["--new.flag=1"]]
    assert cli.main(["probe", "--new.flag=1"]) == 2


def test_errors_for_operators_are_one_line(probe: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    """Even where a reason from elsewhere holds line breaks."""

    def fail(_: argparse.Namespace) -> int:
        raise FactError("config.json: broken\n  at line 3")

    probe(fail)
    assert cli.main(["probe"]) == 2
    assert capsys.readouterr().err == "stepscope: config.json: broken at line 3\n"


def test_the_status_of_a_command_is_the_status_of_the_program(probe: Callable[[Run], None]) -> None:
    """`check` says 1 for a finding; an interrupt is 130."""
    probe(lambda _: 1)
    assert cli.main(["probe"]) == 1

    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    probe(interrupted)
    assert cli.main(["probe"]) == 130


def test_the_settings_reach_the_command(probe: Callable[[Run], None]) -> None:
    """From argv to `load`."""
    urls: list[str] = []

    def run(namespace: argparse.Namespace) -> int:
        urls.append(config.load("check", namespace, {})[table.ENGINE_URL])
        return 0

    probe(run)
    assert cli.main(["probe", "--engine.url=http://a:1"]) == cli.main(["probe", "--engine.url", "http://b:1"]) == 0
    assert urls == ["http://a:1", "http://b:1"]


def test_a_reader_that_goes_away_causes_no_noise() -> None:
    """`stepscope ... | head` ends as other programs do."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stepscope", "--help"], stdout=write, stderr=subprocess.PIPE, timeout=30
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_standard_output_may_be_closed() -> None:
    """As some supervisors start their programs."""
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m stepscope --version >&-', sys.executable], stderr=subprocess.PIPE, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_that_is_not_needed_is_imported() -> None:
    """Start-up time and memory of the sidecar are other people's."""
    heavy = [
        "yaml",
        "requests",
        "prometheus_client",
        "apscheduler",
        "hypothesis",
        "difflib",
        "ssl",
        "stepscope.sim",
        "stepscope.runtime",
    ]
    code = (
        "import sys; from stepscope import cli, config; import argparse; cli.main(['--version']);"
        "config.add_arguments(cli.Parser(), 'serve'); config.load('serve', argparse.Namespace(), {});"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_the_engine_s_multiprocess_directory_is_not_ours() -> None:
    """prometheus_client would share files with the engine if it saw the variable when it is imported."""
    code = (
        "import os; from stepscope.cli import main; main(['--version']); from prometheus_client import values;"
        "print(values.ValueClass.__name__, [n for n in os.environ if 'multiproc' in n.lower()])"
    )
    environ = {"PROMETHEUS_MULTIPROC_DIR": "/nowhere", "prometheus_multiproc_dir": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env={**os.environ, **environ}
    )
    assert done.stdout.splitlines()[-1:] == ["MutexValue []"], done.stderr


def test_a_parser_fault_is_an_error_and_not_an_exit() -> None:
    """argparse would print its usage and end the program."""
    parser = cli.Parser()
    parser.add_argument("--x")
    with pytest.raises(ConfigError, match=r"^argument --x: expected one argument$"):
        parser.parse_args(["--x"])
