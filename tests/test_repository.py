"""Rules of the repository that nobody should have to remember."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared_data import REPOSITORY
from stepscope import docs_tables, metrics
from stepscope.settings import SETTINGS

PACKAGE = REPOSITORY / "exporter" / "stepscope"
LONGEST_FILE_LINES = 320  # about 300: a reader holds a file of this size in mind

# What the pure core may use beside itself: mathematics, containers and types.
PURE_STDLIB = frozenset(
    [
        "__future__",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "statistics",
        "typing",
    ]
)
PURE_OWN = ("stepscope.core", "stepscope.metrics", "stepscope.errors")
# Modules whose presence shows that something looks at the world. `time` is always there, so the import check covers it.
WORLDLY = "socket threading logging asyncio http.client urllib.request requests yaml prometheus_client apscheduler ssl"

_REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("docker", "io"), ("ghcr", "io"),
        ("quay", "io"), ("gcr", "io"), ("registry", "k8s", "io"), ("registry", "access"), ("proxy", "golang"),
        ("deb", "debian", "org"), ("crates", "io"),
    )
]  # fmt: skip
# Folders of whoever wrote the file, not of whoever reads it. A container's /root/.cache is a real place of engines.
_MACHINE_PATHS = [
    re.compile("/" + rest) for rest in (r"work/", r"root/(?!\.cache)", r"tmp/brief", r"opt/(wheels|pypi)")
]
_UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error"]))


def tracked_files() -> list[Path]:
    """Every file that git keeps or would keep; without git, what lies in the known folders."""
    git = shutil.which("git")
    if git and (REPOSITORY / ".git").exists():
        listed = subprocess.run(
            [git, "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout.decode()
        return [path for name in sorted(set(listed.split("\0"))) if name and (path := REPOSITORY / name).is_file()]
    hidden = {".venv", ".git", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
    return [path for path in sorted(REPOSITORY.rglob("*")) if path.is_file() and not hidden & set(path.parts)]


def text_files() -> list[tuple[str, str]]:
    """(name, text) of the tracked files that hold text."""
    found = []
    for path in tracked_files():
        try:
            found.append((str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, also inside functions and under TYPE_CHECKING."""
    package = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            # `from stepscope import core` imports a module, `from stepscope.core import X` mostly does not.
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "stepscope" else {module}
    return found


def python_files(folder: str) -> list[Path]:
    """The files of one part of the package."""
    return sorted((PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("path", python_files("core"), ids=lambda path: path.name)
def test_the_core_imports_only_mathematics_and_itself(path: Path) -> None:
    """Else it could look at a clock, a socket or a file, and its tests would need them too."""
    foreign = {name for name in imports_of(path) if name not in PURE_STDLIB and not name.startswith(PURE_OWN)}
    assert not foreign


@pytest.mark.parametrize("path", python_files("core"), ids=lambda path: path.name)
def test_the_core_opens_and_prints_nothing(path: Path) -> None:
    """The builtins that reach the world need no import."""
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}


def test_importing_the_core_loads_nothing_that_looks_at_the_world() -> None:
    """Also not through another module; checked in a process of its own."""
    modules = [f"stepscope.core.{path.stem}" for path in python_files("core") if path.stem != "__init__"]
    code = (
        f"import sys, importlib; sys.path.insert(0, {str(PACKAGE.parent)!r});"
        f"[importlib.import_module(name) for name in {modules}];"
        f"print([name for name in {WORLDLY.split()} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("path", python_files("sim"), ids=lambda path: path.name)
def test_the_simulator_does_not_know_the_law_it_is_used_to_test(path: Path) -> None:
    """A simulator that shares code with the prediction would agree with its errors."""
    assert not {name for name in imports_of(path) if name.startswith("stepscope.core")}


def test_no_file_of_the_package_is_too_long() -> None:
    """Longer files have two subjects."""
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE_LINES}


def test_no_file_names_a_registry_or_a_folder_of_its_author() -> None:
    """Where packages and images come from is each user's own setting."""
    hosts = re.compile("|".join(rf"(?<![\w.-]){re.escape(host)}|[\w-]\.{re.escape(host)}" for host in _REGISTRIES))
    found = [
        f"{name}: {match.group()}"
        for name, text in text_files()
        for pattern in (hosts, *_MACHINE_PATHS)
        if (match := pattern.search(text))
    ]
    assert not found


def test_nothing_is_left_unfinished() -> None:
    """What is not done is in the issue tracker, not in the code."""
    assert not [f"{name}: {match.group()}" for name, text in text_files() if (match := _UNFINISHED.search(text))]


def test_lock_files_hold_hashes_and_no_addresses() -> None:
    """Locks that record registries work for their author only."""
    names = {path.name for path in tracked_files()}
    assert not names & {"uv.lock", "pylock.toml", "poetry.lock"}
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (REPOSITORY / name).read_text()
        assert "://" not in text
        assert "index-url" not in text
        pinned = re.findall(r"^[a-z0-9-]+==.*\n(.*)", text, re.MULTILINE)
        assert len(pinned) > 5
        assert all(following.startswith("    --hash=sha256:") for following in pinned)


def test_both_lock_files_agree() -> None:
    """What is tested is what the image runs."""

    def pins(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (REPOSITORY / name).read_text(), re.MULTILINE))

    image, development = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {"requests", "prometheus-client", "pyyaml", "apscheduler", "bcrypt"} <= set(image)
    assert image == {name: development[name] for name in image}


def test_generated_reference_pages_are_in_step() -> None:
    """`make docs` writes them."""
    stale = [str(path) for path, _ in docs_tables.stale_pages(REPOSITORY / "docs")]
    assert not stale


def test_every_flag_and_every_series_is_documented() -> None:
    """Undocumented means failing."""
    configuration = (REPOSITORY / "docs" / "configuration.md").read_text()
    series = (REPOSITORY / "docs" / "metrics.md").read_text()
    assert not [setting.flag for setting in SETTINGS.values() if f"`{setting.flag}" not in configuration]
    assert not [metric.full_name for metric in metrics.TABLE if f"`{metric.full_name}`" not in series]


def test_series_named_in_prose_exist() -> None:
    """A renamed series must not live on in the documentation. Names that recording rules make are their own."""
    known = {metric.full_name for metric in metrics.TABLE}
    pages = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md", *(REPOSITORY / "rules").rglob("*.md")]
    series = re.compile(r"(?<![:\w])stepscope_[a-z0-9_]+[a-z0-9]\b")
    named = {name for page in pages for name in series.findall(page.read_text())}
    assert not named - known


def test_make_help_lists_every_target() -> None:
    """And every target is phony, so that a file of the same name does not hide it."""
    text = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", text, re.MULTILINE))
    phony = set(next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:])
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    shown = subprocess.run([make, "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=30)
    assert set(re.findall(r"^  make ([a-z0-9-]+) +\S", shown.stdout, re.MULTILINE)) == targets == phony


def test_continuous_integration_runs_what_a_user_runs() -> None:
    """`.ci/run` is a program and calls `make test`, with tools required."""
    script = REPOSITORY / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "STEPSCOPE_REQUIRE_TOOLS=1 make test" in script.read_text()


def test_the_licence_is_the_one_that_the_package_declares() -> None:
    """The full text is there."""
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in (REPOSITORY / "pyproject.toml").read_text()
