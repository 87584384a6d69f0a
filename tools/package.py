"""Builds what a release publishes into dist/ (or DIR): wheel, sdist, chart archive, and a zip of rules and dashboards.

    python tools/package.py [--image REGISTRY/OWNER/NAME --image-digest sha256:...] [--directory DIR]

The version is the package's, everywhere. With --image and --image-digest the packaged chart names the image where it
was published and pins it (the chart in the repository does not know the digest of an image that is not built yet).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from stepscope import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
# What the zip holds; the runbooks go with the rules that link to them.
MONITORING = (
    "rules/*.yaml",
    "rules/runbooks/*.md",
    "rules/README.md",
    "grafana/*.json",
    "grafana/*.yaml",
    "grafana/README.md",
    "LICENSE",
)
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format: equal contents give equal files


def run(*command: str) -> None:
    """A command that must succeed, bounded."""
    subprocess.run(command, check=True, timeout=300, cwd=REPOSITORY)


def find_helm() -> str:
    """helm of .tools/bin, else of PATH. FileNotFoundError says how to get it."""
    own = str(REPOSITORY / ".tools" / "bin")
    path = shutil.which("helm", path=os.pathsep.join([own, os.environ.get("PATH", os.defpath)]))
    if path is None:
        raise FileNotFoundError("helm is not installed (make helm-tools fetches it)")
    return path


def with_image(values: str, image: str, digest: str) -> str:
    """The chart's values with the published image. ValueError where they do not have the expected lines."""
    registry, _, name = image.partition("/")
    wanted = {"registry": registry, "repository": name, "digest": digest}
    for key, value in wanted.items():
        values, count = re.subn(rf"(?m)^  {key}: \S+$", f"  {key}: {value}", values)
        if count != 1:
            raise ValueError(f"helm/stepscope/values.yaml: no single line with the image's {key}")
    return values


def package_chart(image: str, digest: str, directory: Path) -> None:
    """The chart archive, the image named and pinned where they are given."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder, "stepscope")
        shutil.copytree(REPOSITORY / "helm" / "stepscope", chart)
        if digest:
            values = chart / "values.yaml"
            values.write_text(with_image(values.read_text("utf-8"), image, digest), "utf-8")
        run(find_helm(), "lint", "--strict", "--quiet", str(chart))
        run(find_helm(), "package", str(chart), "--destination", str(directory))


def package_monitoring(directory: Path) -> None:
    """Rules, runbooks and dashboards for those who use no chart."""
    path = directory / f"stepscope-monitoring-{__version__}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted({found for pattern in MONITORING for found in REPOSITORY.glob(pattern)}):
            entry = zipfile.ZipInfo(str(source.relative_to(REPOSITORY)), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, source.read_bytes())


def main() -> int:
    """Build everything anew. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Build what a release publishes into dist/.")
    parser.add_argument("--image", default="", help="REGISTRY/OWNER/NAME of the published image, with its digest")
    parser.add_argument("--image-digest", default="", help="sha256:... of the published image")
    parser.add_argument("--directory", type=Path, default=REPOSITORY / "dist", help="where to; emptied first")
    arguments = parser.parse_args()
    image, digest, directory = arguments.image, arguments.image_digest, arguments.directory.resolve()
    if digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.stderr.write(f"package: {digest!r} is not a digest (sha256: and 64 hexadecimal digits)\n")
        return 2
    if bool(digest) != bool(re.fullmatch(r"[\w.-]+(:\d+)?/[\w./-]+", image)):
        sys.stderr.write(f"package: the image {image!r} and its digest go together, as REGISTRY/OWNER/NAME\n")
        return 2
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        run(sys.executable, str(REPOSITORY / "tools" / "chart_files.py"), "--check")
        run(sys.executable, "-m", "hatchling", "build", "--directory", str(directory))
        package_chart(image, digest, directory)
        package_monitoring(directory)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        sys.stderr.write(f"package: {error}\n")
        return 1
    files = sorted(path for path in directory.iterdir() if path.is_file())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (directory / "SHA256SUMS").write_text(sums, "utf-8")
    sys.stdout.write(sums)
    return 0


if __name__ == "__main__":
    sys.exit(main())
