"""`stepscope demo`: a simulated engine, the real sidecar beside it, and a live table of what it says."""

from __future__ import annotations

import argparse
import logging
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.snapshot import EngineView
from stepscope.runtime.log import make_logger
from stepscope.runtime.sidecar import Sidecar
from stepscope.sim.build import build_config
from stepscope.sim.scenario import SCENARIOS
from stepscope.sim.server import SimServer

HELP = "Watch a simulated engine slow down, and why. Needs no GPU and no Prometheus."

# What a user would know: the model, the GPU, the speed promised. Nothing of the simulator's own law.
MODEL, SIM_MODEL, GPU, OBJECTIVE = "Qwen/Qwen3-8B", "qwen3-8b", "H100-SXM", 50.0
INTERVAL_SECONDS, WINDOW_SECONDS, WARM_UP_SECONDS = 1.0, 10.0, 10.0  # shorter than the defaults: two minutes are short
MEDIAN_DRIFT_LIMIT, P90_DRIFT_LIMIT = 0.05, 0.15  # what --once holds itself to
MIN_JUDGED = 20  # samples; with fewer the run proves nothing

_COLUMNS = (
    "   time  measured predicted   drift | weights      kv  prefill | in flight    budget  batch | state       cause"
)


@dataclass(slots=True)
class Tally:
    """What a run has shown: |drift| of every judged sample, and the causes seen."""

    drifts: list[float] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    samples: int = 0

    def add(self, view: EngineView) -> None:
        """One sample."""
        self.samples += 1
        if view.drift_ratio is not None:
            self.drifts.append(abs(view.drift_ratio))
        if view.cause is not None:
            self.causes[view.cause] = self.causes.get(view.cause, 0) + 1

    @property
    def median(self) -> float:
        """Of |drift|."""
        return statistics.median(self.drifts) if self.drifts else float("nan")

    @property
    def p90(self) -> float:
        """Of |drift|."""
        return statistics.quantiles(self.drifts, n=10)[-1] if len(self.drifts) > 1 else float("nan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Few: the demo has one story."""
    parser.add_argument("--once", action="store_true", help="play the story once, sum up, exit 0 if the numbers hold")
    parser.add_argument("--listen-address", default="127.0.0.1:10094", metavar="HOST:PORT",
                        help="where the sidecar's own pages are; port 0: any. Default: %(default)s")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulator. Default: %(default)s")
    parser.add_argument("--log", action="store_true", help="show the sidecar's log lines too")


def run(args: argparse.Namespace) -> int:
    """Play until the story ends (--once) or a signal comes. 1 if --once misses its own limits."""
    scenario = SCENARIOS["demo"]
    stopped = threading.Event()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    log = make_logger("info" if args.log else "error", "text")
    tally = Tally()
    while True:
        simulator = SimServer(build_config(SIM_MODEL, GPU, "well-behaved"), "127.0.0.1:0", scenario, args.seed)
        simulator.start()
        try:
            _play(simulator, args.listen_address, scenario.seconds, stopped, tally, log)
        finally:
            simulator.stop()
        if stopped.is_set():
            return 0
        _sum_up(tally)
        if args.once:
            return _verdict(tally)
        print("\nonce more (Ctrl-C ends)\n", flush=True)


def _play(
    simulator: SimServer, listen: str, seconds: float, stopped: threading.Event, tally: Tally, log: logging.Logger
) -> None:
    settings = Settings.of(
        (table.ENGINE_URL, simulator.url),
        (table.WEB_LISTEN_ADDRESS, listen),
        (table.SAMPLE_INTERVAL, INTERVAL_SECONDS),
        (table.SAMPLE_WINDOW, WINDOW_SECONDS),
        (table.SAMPLE_WARM_UP, WARM_UP_SECONDS),
        (table.MODEL_ID, MODEL),
        (table.HARDWARE_GPU, GPU),
        (table.OBJECTIVE_TOKENS_PER_SECOND, OBJECTIVE),
    )
    # The demo's settings are its own: no environment variable may turn it into something else.
    sidecar = Sidecar(settings, log, reread=lambda: settings, environ={})
    sidecar.start()
    host = "127.0.0.1" if listen.startswith(":") else listen.rpartition(":")[0]
    print(f"A simulated vLLM serves {MODEL} on one {GPU} at {simulator.url}.")
    print(f"stepscope watches it: http://{host}:{sidecar.web.port}/ (page), /metrics (Prometheus).")
    print(f"Promised: {OBJECTIVE:.0f} tokens/s to each user, so a decode step may take {900 / OBJECTIVE:.0f} ms.\n")
    try:
        _watch(simulator, sidecar, seconds, stopped, tally)
    finally:
        sidecar.stop()


def _watch(simulator: SimServer, sidecar: Sidecar, seconds: float, stopped: threading.Event, tally: Tally) -> None:
    """Print one line per sample."""
    began = time.monotonic()
    phase, last = "", -1.0
    while time.monotonic() - began < seconds and not stopped.wait(0.1):
        snapshot = sidecar.state.snapshot
        if simulator.phase != phase:
            phase = simulator.phase
            print(f"\n-- {phase} --\n{_COLUMNS}", flush=True)
        if not snapshot.engines or snapshot.engines[0].at_seconds == last:
            continue
        view = snapshot.engines[0]
        last = view.at_seconds
        tally.add(view)
        print(_line(time.monotonic() - began, view), flush=True)


def _line(seconds: float, view: EngineView) -> str:
    step = view.predicted
    drift = "      -" if view.drift_ratio is None else f"{view.drift_ratio:+7.1%}"
    parts = (step.weights_seconds, step.kv_cache_seconds, step.prefill_seconds) if step else (None, None, None)
    return (
        f"{seconds:6.1f}s {_ms(view.itl_mean_seconds, 7)} {_ms(view.predicted_itl_seconds, 7)} {drift} |"
        f" {_ms(parts[0], 4)} {_ms(parts[1], 5)} {_ms(parts[2], 6)} |"
        f" {_count(view.tokens_in_flight):>9} {_count(view.speed_budget_tokens):>9}"
        f" {view.decode_batch_size or 0:6.1f} |"
        f" {view.state:<11} {view.cause or ''}"
    ).rstrip()


def _ms(value: float | None, width: int) -> str:
    return "-".rjust(width + 3) if value is None else f"{value * 1e3:{width}.1f} ms"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _sum_up(tally: Tally) -> None:
    print("\nOver the whole story:")
    print(f"  judged {len(tally.drifts)} of {tally.samples} samples; the others were warming up or mostly prompts")
    print(f"  |measured / predicted - 1|: median {tally.median:.1%}, 90th percentile {tally.p90:.1%}")
    seen = ", ".join(f"{cause} {count}" for cause, count in sorted(tally.causes.items(), key=lambda item: -item[1]))
    print(f"  causes, in samples: {seen}")


def _verdict(tally: Tally) -> int:
    """1 if the run does not show what it is there to show."""
    faults = []
    if len(tally.drifts) < MIN_JUDGED:
        faults.append(f"only {len(tally.drifts)} samples were judged, {MIN_JUDGED} are needed")
    elif not (tally.median <= MEDIAN_DRIFT_LIMIT and tally.p90 <= P90_DRIFT_LIMIT):
        faults.append(
            f"the drift is above {MEDIAN_DRIFT_LIMIT:.0%} (median) or {P90_DRIFT_LIMIT:.0%} (90th percentile)"
        )
    faults += [f"the cause {cause} was never seen" for cause in ("context", "prefill") if cause not in tally.causes]
    for line in faults:
        print(f"stepscope: demo: {line}", file=sys.stderr)
    return 1 if faults else 0
