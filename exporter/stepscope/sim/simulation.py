"""A deployment in simulated time: engines, load, faults, restarts. Pure: no clock, no thread, no socket.

`advance(t)` plays everything up to time t. The server calls it with the wall clock, a benchmark with large strides.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping

from stepscope.errors import ConfigError
from stepscope.sim.cohort import Request
from stepscope.sim.engine import Engine, EngineState
from stepscope.sim.faults import Faults
from stepscope.sim.page import HttpCounters, Page
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scenario import Player, Scenario

MAX_RESTART_SECONDS = 3600.0  # a longer outage is surely a slip


class Simulation:
    """Times are seconds since its start; `epoch_seconds` is the Unix time of that start, for what the page shows."""

    def __init__(
        self, config: EngineConfig, scenario: Scenario | None = None, *, seed: int = 1, epoch_seconds: float = 1.7e9
    ) -> None:
        """Deterministic: the same arguments and the same calls give the same pages."""
        self.config = config
        self.now_seconds = 0.0
        self.epoch_seconds = epoch_seconds
        self.down_until_seconds = 0.0  # the engine is restarting before this time
        self.started_seconds = 0.0  # of the present engine life
        self.restarts = 0
        self.faults = Faults()
        self.http = HttpCounters()
        self._seed = seed
        self._page = Page(config)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._homes: dict[Request, Engine] = {}
        self.engines = self._new_engines()
        self._player = Player(self, scenario, seed) if scenario else None

    @property
    def phase(self) -> str:
        """Name of the scenario's phase, or an empty string without a scenario."""
        return self._player.phase if self._player else ""

    @property
    def rejected_users(self) -> int:
        """Users of the scenario that gave up because their request can never run on this engine."""
        return self._player.rejected_users if self._player else 0

    @property
    def is_down(self) -> bool:
        """True while a restart lasts: nothing listens."""
        return self.now_seconds < self.down_until_seconds

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time, not before now."""
        self._serial += 1
        heapq.heappush(self._events, (max(seconds, self.now_seconds), self._serial, action))

    def next_event_seconds(self) -> float:
        """When something happens next; infinite when nothing will."""
        soonest = min(engine.step_end_seconds for engine in self.engines)
        return min(soonest, self._events[0][0]) if self._events else soonest

    def advance(self, until_seconds: float) -> None:
        """Play everything due up to and including `until_seconds`."""
        while True:
            engine = min(self.engines, key=_step_end) if len(self.engines) > 1 else self.engines[0]
            event_seconds = self._events[0][0] if self._events else math.inf
            if min(event_seconds, engine.step_end_seconds) > until_seconds:
                break
            if engine.step_end_seconds <= event_seconds:
                self.now_seconds = engine.step_end_seconds
                engine.complete()
            else:
                self.now_seconds = event_seconds
                heapq.heappop(self._events)[2]()
        self.now_seconds = max(self.now_seconds, until_seconds)

    def submit(self, request: Request) -> None:
        """Send a request to the least loaded engine; during a restart it waits for the engine to come back.

        ValueError when it can never run.
        """
        self.engines[0].check(request)
        if request.state == "ended":  # cancelled while the engine was away
            return
        if self.is_down:
            self.at(self.down_until_seconds, lambda: self.submit(request))
            return
        self._clean_homes()
        engine = min(self.engines, key=_load)
        self._homes[request] = engine
        engine.submit(request, self.now_seconds)

    def place(self, request: Request, generated_tokens: int) -> None:
        """Begin with a request that is under way; without room for it, it is queued as a new one."""
        engine = min(self.engines, key=_load)
        try:
            engine.place(request, generated_tokens, self.now_seconds)
        except ValueError:
            self.submit(request)
            return
        self._homes[request] = engine
        self.at(self.now_seconds, lambda: engine.begin(self.now_seconds))  # once all of a group are in place

    def abort(self, request: Request) -> None:
        """Cancel a request; one that has ended is ignored."""
        engine = self._homes.pop(request, None)
        if request.state == "ended":
            return
        if engine is None:  # waits for the end of a restart
            request.state = "ended"
        else:
            engine.abort(request, self.now_seconds)

    def set_faults(self, changes: Mapping[str, object]) -> None:
        """Switch faults; `restart` (seconds) is an action, others stay until changed. ConfigError if wrong."""
        rest = {key: value for key, value in changes.items() if key != "restart"}
        faults = self.faults.updated(rest)
        down_seconds = _restart_seconds(changes["restart"]) if "restart" in changes else None
        self.faults = faults
        for engine in self.engines:
            engine.set_faults(faults, self.now_seconds)
        if down_seconds is not None:
            self.restart(down_seconds)

    def restart(self, down_seconds: float) -> None:
        """The engine dies now and is back, empty and with counters at 0, after `down_seconds`; requests are lost."""
        lost = [request for request in self._homes if request.state != "ended"]
        self._homes.clear()
        self.restarts += 1
        self.down_until_seconds = self.started_seconds = self.now_seconds + down_seconds
        self.http = HttpCounters()
        self.engines = self._new_engines()
        for request in lost:
            request.state = "ended"
            if request.on_end:
                request.on_end(self.now_seconds, "lost")

    def page_text(self, names: frozenset[str] | None = None) -> str | None:
        """The page as of now (with `names`, only samples so called); None while the engine is down."""
        if self.is_down:
            return None
        counters = [engine.counters for engine in self.engines]
        start = self.epoch_seconds + self.started_seconds
        return self._page.render(counters, self.http, start, self.now_seconds - self.started_seconds, names)

    def states(self) -> list[EngineState]:
        """The truth about each engine now."""
        return [engine.state() for engine in self.engines]

    def _new_engines(self) -> list[Engine]:
        base = self._seed + 1000 * self.restarts
        engines = [Engine(self.config, base + 10 * rank) for rank in range(self.config.data_parallel)]
        for engine in engines:
            engine.set_faults(self.faults, self.now_seconds)
        return engines

    def _clean_homes(self) -> None:
        if len(self._homes) > 1000:
            self._homes = {r: engine for r, engine in self._homes.items() if r.state != "ended"}


def run_simulated(
    config: EngineConfig,
    scenario: Scenario | None,
    seconds: float,
    *,
    seed: int = 1,
    on_scrape: tuple[float, Callable[[float, Simulation], None]] | None = None,
) -> Simulation:
    """Play `seconds` as fast as the machine can. `on_scrape` = (period in seconds, callback(time, simulation)).

    The callback reads `simulation.page_text()` or `simulation.states()` and may call `set_faults`.
    """
    simulation = Simulation(config, scenario, seed=seed)
    if on_scrape is not None:
        period, callback = on_scrape
        for i in range(int(seconds / period) + 1):
            simulation.advance(i * period)
            callback(i * period, simulation)
    simulation.advance(seconds)
    return simulation


def _restart_seconds(value: object) -> float:
    try:
        seconds = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= MAX_RESTART_SECONDS:
        raise ConfigError(f"faults: restart must be 0..{MAX_RESTART_SECONDS:g} seconds, not {value!r}")
    return seconds


def _step_end(engine: Engine) -> float:
    return engine.step_end_seconds


def _load(engine: Engine) -> int:
    return engine.load
