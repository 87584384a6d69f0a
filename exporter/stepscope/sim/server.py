"""The simulator in real time: one thread plays by the wall clock, one listens, one more per connection."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

from stepscope.errors import ConfigError
from stepscope.sim.cohort import Request
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scenario import Scenario
from stepscope.sim.simulation import Simulation
from stepscope.sim.web import Listener, truth_json

LONGEST_WAIT_SECONDS = 0.5
SUSPENDED_SECONDS = 3.0  # a longer gap means that the machine slept: the simulated clock sleeps with it
POLL_SECONDS = 0.1  # how soon the accept loop notices that it must end


class SimServer:
    """A vLLM-shaped server on `listen` ("HOST:PORT", port 0 picks a free one), in wall time since `start`."""

    def __init__(
        self,
        engine_config: EngineConfig,
        listen: str = "127.0.0.1:0",
        scenario: Scenario | None = None,
        seed: int = 1,
    ) -> None:
        """Nothing runs or listens yet. ConfigError for a malformed address."""
        self._address = parse_address(listen)
        self._config = engine_config
        self._scenario = scenario
        self._seed = seed
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._listening = threading.Lock()  # guards the listener; never taken while holding _lock
        self._listener: Listener | None = None
        self._simulation: Simulation | None = None
        self._driver: threading.Thread | None = None
        self._zero = 0.0  # time.monotonic() at simulated time 0
        self._stopping = False

    @property
    def url(self) -> str:
        """Base URL, valid once started."""
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def phase(self) -> str:
        """Name of the scenario's present phase; empty without a scenario."""
        with self._lock:
            return self._simulation.phase if self._simulation else ""

    def start(self) -> None:
        """Listen and play. ConfigError when the address cannot be had."""
        with self._lock:
            self._simulation = Simulation(self._config, self._scenario, seed=self._seed, epoch_seconds=time.time())
            self._zero = time.monotonic()
            self._stopping = False
        try:
            with self._listening:
                self._open_listener()
        except OSError as error:
            host, port = self._address
            raise ConfigError(f"sim: cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._driver = threading.Thread(target=self._drive, name="sim-engine", daemon=True)
        self._driver.start()

    def stop(self) -> None:
        """Stop listening, drop connections, end the threads. Harmless when not running."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._driver is not None and self._driver is not threading.current_thread():
            self._driver.join()
        with self._listening:
            self._close_listener()

    def set_faults(self, **changes: object) -> None:
        """Switch faults, e.g. `set_faults(throttle=1.4)`; `restart=SECONDS` is an action. ConfigError if wrong."""
        self.change_faults(changes)

    def truth(self) -> dict[str, object]:
        """Phase, simulated seconds and the true state of every engine."""
        return truth_json(self._running())

    # What the HTTP handlers use.

    def read(self, what: str, names: frozenset[str] | None = None) -> object:
        """`page` (text, None during a restart), `faults` or `truth`."""
        with self._lock:
            simulation = self._running()
            if what == "page":
                return simulation.page_text(names)
            return asdict(simulation.faults) if what == "faults" else truth_json(simulation)

    def submit(self, request: Request) -> None:
        """Send a request now; ValueError when it can never run."""
        with self._wake:
            self._catch_up()
            self._running().submit(request)
            self._wake.notify_all()

    def abort(self, request: Request) -> None:
        """Cancel a request."""
        with self._wake:
            self._running().abort(request)
            self._wake.notify_all()

    def change_faults(self, changes: dict[str, object]) -> None:
        """Switch faults; a restart has closed the port when this returns."""
        with self._wake:
            self._catch_up()
            self._running().set_faults(changes)
            self._wake.notify_all()
        self._match_listener()

    def book_http(self, request_bytes: int, seconds: float) -> None:
        """Count one answered POST /v1/completions."""
        with self._lock:
            self._running().http.book(request_bytes, seconds)

    def _running(self) -> Simulation:
        if self._simulation is None:
            raise RuntimeError("the simulator has not been started")
        return self._simulation

    def _catch_up(self) -> float:
        """Play up to the wall clock; returns seconds until the next event. Called with the lock held."""
        simulation = self._running()
        now = time.monotonic() - self._zero
        if (gap := now - simulation.now_seconds) > SUSPENDED_SECONDS:
            self._zero += gap
            now = simulation.now_seconds
        simulation.advance(now)
        until = simulation.next_event_seconds()
        if simulation.is_down:
            until = min(until, simulation.down_until_seconds)
        return until - (time.monotonic() - self._zero)

    def _drive(self) -> None:
        while True:
            with self._wake:
                if self._stopping:
                    return
                wait = self._catch_up()
                if wait > 0:
                    self._wake.wait(min(wait, LONGEST_WAIT_SECONDS))
            self._match_listener()

    def _match_listener(self) -> None:
        """Listen exactly while the engine is up. A port that somebody took meanwhile is tried again."""
        with self._listening:
            with self._lock:
                up = not self._running().is_down and not self._stopping
            if not up:
                self._close_listener()
            elif self._listener is None:
                try:
                    self._open_listener()
                except OSError:
                    return

    def _open_listener(self) -> None:
        listener = Listener(self._address, self, self._running())
        self._address = (self._address[0], int(listener.server_address[1]))
        self._listener = listener
        threading.Thread(target=listener.serve_forever, args=(POLL_SECONDS,), name="sim-http", daemon=True).start()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()
            listener.drop_connections()


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of "HOST:PORT", ":PORT" or "[IPV6]:PORT". ConfigError for anything else."""
    host, separator, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and bare == host):
        raise ConfigError(f"sim: listen address must be HOST:PORT, not {text!r}")
    return bare or "0.0.0.0", int(port)
