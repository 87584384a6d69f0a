"""Plays a pod: a simulated engine and the sidecar as a manifest describes it, alone in their own network and mounts.

    unshare --mount --net --propagation private python pod_driver.py JSON

JSON: `arguments` of the sidecar as rendered, `engine_port`, `port`, `wait_for` (what the page must come to hold).
The sidecar runs as user 65532 without capabilities and on a read-only root, as its securityContext says. Prints one
JSON object: `page`, `healthy`, `writable` (paths it could write), `exit_status`, `log`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

USER = "65532"
DEADLINE_SECONDS = 40.0  # start of Python on a busy machine, and three samples
SIMULATOR = "import sys; from stepscope.cli import main; sys.exit(main(sys.argv[1:]))"
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1  # linux/sockios.h, linux/if.h
PLACES = {"python": sys.base_prefix, "site": sysconfig.get_paths()["purelib"], "exporter": ""}


def raise_loopback() -> None:
    """A new network namespace has its loopback interface down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))


def mount(*arguments: str) -> None:
    """A mount of this namespace only."""
    subprocess.run(["mount", *arguments], check=True, timeout=10)


def prepare_root(exporter: Path) -> None:
    """Python and the package under /mnt, where any user may read them; then everything read-only."""
    mount("-t", "tmpfs", "none", "/mnt")
    for name, source in {**PLACES, "exporter": str(exporter)}.items():
        target = Path("/mnt", name)
        target.mkdir()
        mount("--bind", source, str(target))
        mount("-o", "remount,ro,bind", str(target))
    mount("-o", "remount,ro", "/mnt")
    mount("-o", "remount,ro,bind", "/")


def as_user(command: list[str]) -> list[str]:
    """The command as the unprivileged user without any capability."""
    identity = ["--reuid", USER, "--regid", USER, "--clear-groups"]
    return ["setpriv", *identity, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", *command]


def fetch(url: str) -> str:
    """A page, or an empty text."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2) as response:
            return str(response.read().decode())
    except OSError:
        return ""


def main() -> None:
    """Run the pod and print what came of it."""
    pod = json.loads(sys.argv[1])
    exporter = Path(__file__).resolve().parents[2] / "exporter"
    raise_loopback()
    prepare_root(exporter)
    python = f"/mnt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    environment = {
        "PYTHONPATH": "/mnt/exporter:/mnt/site",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": "/mnt/python/lib",
        "PATH": os.environ["PATH"],
        "HOME": "/",
    }
    listen = f"--listen-address=127.0.0.1:{pod['engine_port']}"
    engine = subprocess.Popen(
        [python, "-c", SIMULATOR, "sim", listen, "--max-seconds=120"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    reader, writer = os.pipe()
    sidecar = subprocess.Popen(
        as_user([python, "-m", "stepscope", *pod["arguments"]]), env=environment, stdout=writer, stderr=writer
    )
    os.close(writer)
    url = f"http://127.0.0.1:{pod['port']}"
    page = ""
    try:
        end = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < end and sidecar.poll() is None and pod["wait_for"] not in page:
            time.sleep(0.2)
            page = fetch(f"{url}/metrics")
        healthy = fetch(f"{url}/-/healthy")
        tried = "for path in /x /tmp/x /mnt/x /var/x; do touch $path 2>/dev/null && echo $path; done; true"
        writable = subprocess.run(as_user(["sh", "-c", tried]), capture_output=True, text=True, timeout=10, check=True)
        sidecar.send_signal(signal.SIGTERM)
        status = sidecar.wait(timeout=10)
    finally:
        for process in (sidecar, engine):
            process.kill()
            process.wait(timeout=10)
    with os.fdopen(reader) as log:
        result = {"page": page, "healthy": healthy, "writable": writable.stdout.split(), "exit_status": status}
        print(json.dumps({**result, "log": log.read()}))


if __name__ == "__main__":
    main()
