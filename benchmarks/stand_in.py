"""A stand-in for an engine, run as a process of its own: one second of simulated load per metrics request.

    python benchmarks/stand_in.py [--hang-after=N]

Prints its port. With --hang-after it falls silent after N pages: it takes connections and requests, and never answers.
"""

from __future__ import annotations

import argparse
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from stepscope.sim.build import build_config
from stepscope.sim.scenario import SCENARIOS, Phase, Scenario
from stepscope.sim.simulation import Simulation

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ROUNDS = 200  # 130 s each: 26,000 pages, more than is asked for


def _load() -> Scenario:
    """The demo again and again: chats, long agents, prompt bursts, and a little silence so that idleness is there."""
    pause = Phase("nobody", 10.0, ())
    return Scenario((*SCENARIOS["demo"].phases, pause) * _ROUNDS)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hang_after: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._simulation = Simulation(build_config(), _load())
        self._lock = threading.Lock()
        self._hang_after = hang_after
        self._pages = 0

    def page(self, names: frozenset[str] | None) -> str | None:
        """The page one second later; None when it is time to hang."""
        with self._lock:
            if self._hang_after is not None and self._pages >= self._hang_after:
                return None
            self._pages += 1
            self._simulation.advance(float(self._pages))
            return self._simulation.page_text(names)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:  # http.server's name
        """Pages and facts, as vLLM serves them."""
        url = urlsplit(self.path)
        if url.path == "/version":
            self._reply("application/json", '{"version": "0.32.0"}')
        elif url.path.rstrip("/") == "/metrics":
            names = parse_qs(url.query).get("name[]") if url.path.endswith("/") else None
            page = self.server.page(frozenset(names) if names else None)
            if page is None:
                threading.Event().wait()  # for as long as the process lives
            else:
                self._reply(_CONTENT_TYPE, page)
        else:
            self.send_error(404)

    def _reply(self, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # the base class names it so
        """Stay silent."""


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-after", type=int)
    server = _Server(parser.parse_args().hang_after)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
