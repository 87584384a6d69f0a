"""What a release publishes, the workflows that do it, and the recipe of the image."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from shared_data import REPOSITORY
from stepscope import __version__
from tools import require_tool

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
IMAGE = "registry.example.com/owner/stepscope"
DIGEST = "sha256:" + "ab" * 32


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A finished command, whatever its status; bounded."""
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release, with the digest of an image."""
    require_tool("helm")
    folder = tmp_path_factory.mktemp("dist")
    package = str(REPOSITORY / "tools" / "package.py")
    result = run(sys.executable, package, f"--image={IMAGE}", f"--image-digest={DIGEST}", f"--directory={folder}")
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_a_release_is_wheel_sdist_chart_and_monitoring_of_one_version(dist: Path) -> None:
    """And a list of hashes that is right."""
    names = {path.name for path in dist.iterdir()}
    assert names == {
        f"stepscope-{__version__}-py3-none-any.whl",
        f"stepscope-{__version__}.tar.gz",
        f"stepscope-{__version__}.tgz",
        f"stepscope-monitoring-{__version__}.zip",
        "SHA256SUMS",
    }
    for line in (dist / "SHA256SUMS").read_text("utf-8").splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_the_packaged_chart_names_and_pins_the_image_that_was_published(dist: Path) -> None:
    """The repository's chart cannot know it, and an image that cannot be pulled holds up engines."""
    archive = dist / f"stepscope-{__version__}.tgz"
    result = run(require_tool("helm"), "template", "x", str(archive), "--set", "quickstart.enabled=true")
    assert f'image: "{IMAGE}@{DIGEST}"' in result.stdout
    with tarfile.open(archive) as chart:
        names = chart.getnames()
    assert "stepscope/files/rules/alerts.yaml" in names
    assert not [name for name in names if "/ci/" in name]


def test_the_monitoring_zip_is_the_committed_rules_and_dashboards(dist: Path) -> None:
    """For those who use no chart."""
    with zipfile.ZipFile(dist / f"stepscope-monitoring-{__version__}.zip") as archive:
        names = archive.namelist()
        assert archive.read("rules/alerts.yaml") == (REPOSITORY / "rules" / "alerts.yaml").read_bytes()
    assert {path.name for path in (REPOSITORY / "grafana").glob("*.json")} <= {Path(name).name for name in names}


def test_a_wrong_digest_is_refused() -> None:
    """One line, before anything is built."""
    result = run(sys.executable, str(REPOSITORY / "tools" / "package.py"), "--image-digest", "latest")
    assert result.returncode == 2
    assert result.stderr == "package: 'latest' is not a digest (sha256: and 64 hexadecimal digits)\n"


@pytest.mark.parametrize("flags", [(f"--image-digest={DIGEST}",), (f"--image={IMAGE}",)], ids=["digest", "image"])
def test_an_image_is_named_and_pinned_or_neither(flags: tuple[str, ...]) -> None:
    """A digest without its registry would be looked for in another one."""
    result = run(sys.executable, str(REPOSITORY / "tools" / "package.py"), *flags)
    assert result.returncode == 2
    assert "go together" in result.stderr


def test_the_wheel_holds_its_tables(dist: Path) -> None:
    """GPU and model facts are data files, easily forgotten by a build."""
    with zipfile.ZipFile(dist / f"stepscope-{__version__}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
    packaged = REPOSITORY / "exporter" / "stepscope" / "facts"
    assert {f"stepscope/facts/{path.name}" for path in packaged.glob("*.json")} <= set(names)


@pytest.mark.parametrize("tool", [("actionlint",), ("zizmor", "--offline", "--no-progress", ".github/workflows")])
def test_workflows_pass_their_linters(tool: tuple[str, ...]) -> None:
    """Syntax, expressions, shell; and the mistakes that hand a repository to strangers."""
    result = run(require_tool(tool[0]), *tool[1:])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_rights_are_listed(path: Path) -> None:
    """A tag can be moved; a workflow without `permissions` has the repository's default."""
    text = path.read_text("utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action), action
        assert re.search(r"# v\d+\.\d+\.\d+$", comment), action
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job, name
        assert job.get("permissions", {}).get("packages") is None, name


def test_the_image_recipe_passes_its_linter() -> None:
    """hadolint knows the usual mistakes."""
    result = run(require_tool("hadolint"), "Dockerfile")
    assert result.returncode == 0, result.stdout


def test_the_image_runs_as_a_number_and_installs_by_hash_only() -> None:
    """Kubernetes cannot verify runAsNonRoot for a name, and a resolved version is another one tomorrow."""
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    assert "\nUSER 65532:65532\n" in text
    assert "\nHEALTHCHECK NONE\n" in text
    assert text.count("FROM ${BASE}") == 2
    for line in text.splitlines():
        if "pip install" in line:
            assert "--require-hashes" in line or "--no-index" in line, line
    for name in ("requirements.lock", "requirements-build.lock"):
        lock = (REPOSITORY / name).read_text("utf-8")
        assert lock.count("==") <= lock.count("--hash=sha256:")


def test_the_image_builds_with_the_build_backend_that_the_project_names() -> None:
    """Two places pin it, because a build without isolation does not read pyproject.toml for it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    (backend,) = project["build-system"]["requires"]
    assert f"\n{backend} " in (REPOSITORY / "requirements-build.lock").read_text("utf-8")
