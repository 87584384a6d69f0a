"""How long stepscope's own /metrics takes while its engine answers, and while the engine hangs."""

from __future__ import annotations

import http.client
import json
import time

from measure import Child, ahead_of_others, cpu_seconds, free_port, get, quantile, say, wait_until_serving
from report import Check, Table
from subject import FLAGS

_PAGES_BEFORE_HANGING = 8
_FIRST = " All of them had real-time priority, because other work on the machine is not the subject."
_PAUSE_SECONDS = 0.005  # between two requests, so that they spread over several scrapes
# What Prometheus 2.42 asks for (scrape/scrape.go: acceptHeader).
PROMETHEUS_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


def serve(engine_port: int, port: int, *flags: str) -> Child:
    """`stepscope serve`, watching an engine on loopback."""
    return Child.python(
        "-m",
        "stepscope",
        "serve",
        f"--engine.url=http://127.0.0.1:{engine_port}",
        f"--web.listen-address=127.0.0.1:{port}",
        *FLAGS,
        *flags,
    )


class _Client:
    """One kept connection, as Prometheus has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
        self.wall_seconds: list[float] = []
        self.body = b""

    def ask(self) -> None:
        """One request, timed to the last byte of its answer."""
        began = time.perf_counter()
        self._connection.request("GET", "/metrics", headers=PROMETHEUS_HEADERS)
        self.body = self._connection.getresponse().read()
        self.wall_seconds.append(time.perf_counter() - began)
        time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


def _scrapes(port: int) -> dict[str, int]:
    scrapes: dict[str, int] = json.loads(get(port, "/api/v1/snapshot"))["engine_scrapes"]
    return scrapes


_ECHO = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def measure(requests: int) -> Table:
    """The real command against an engine that answers for a while and then falls silent.

    All processes of this measurement go first where that is allowed: the subject is not what else the machine does.
    """
    say(f"latency: {requests} requests")
    with ahead_of_others() as first:
        return _measure(requests, first)


def _measure(requests: int, first: bool) -> Table:
    with Child.python("benchmarks/stand_in.py", f"--hang-after={_PAGES_BEFORE_HANGING}") as engine:
        port = free_port()
        with serve(int(engine.line()), port) as sidecar:
            wait_until_serving(port, "/-/ready")
            until = time.monotonic() + 60.0
            while not _scrapes(port)["timeout"]:
                if time.monotonic() > until:
                    raise RuntimeError("the stand-in engine did not begin to hang")
                time.sleep(0.2)
            with Child.python("-c", _ECHO) as nothing:
                ours, theirs = _Client(port), _Client(int(nothing.line()))
                timeouts, cpu = _scrapes(port)["timeout"], cpu_seconds(sidecar.pid)
                for _ in range(requests):
                    ours.ask()
                    theirs.ask()
                cpu = cpu_seconds(sidecar.pid) - cpu
                timeouts = _scrapes(port)["timeout"] - timeouts
                ours.close()
                theirs.close()
    hanging = ours.wall_seconds
    p99 = quantile(hanging, 0.99) * 1e3
    rows = [
        (name, *(f"{quantile(values, share) * 1e3:.2f}" for share in (0.5, 0.9, 0.99, 1.0)))
        for name, values in (
            (f"`stepscope serve`, engine hanging ({timeouts} scrapes timed out meanwhile)", hanging),
            ("a server of ten lines that answers `ok`", theirs.wall_seconds),
        )
    ]
    return Table(
        "Own /metrics while the engine hangs",
        f"Wall time of {requests} requests on one kept connection, {2 * _PAUSE_SECONDS * 1e3:.0f} ms apart, with the "
        "headers of Prometheus 2.42 (OpenMetrics, gzip), to the real command. Its engine took connections and "
        f"requests and never answered; the page still held the last good values ({len(ours.body)} bytes packed). A "
        f"request costs the process {cpu / requests * 1e3:.2f} ms of CPU. Below it a server that does nothing, asked "
        f"in turns with it: what the machine itself adds.{_FIRST if first else ''} Milliseconds.",
        ("who answers", "p50", "p90", "p99", "worst"),
        tuple(rows),
        (Check("own /metrics while the engine hangs, p99", p99, 10.0, "ms"),),
    )
