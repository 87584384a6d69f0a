"""What calibrate and bench share: reaching the engine, knowing what runs there, progress, and ending cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import TextIO

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.assume import Given
from stepscope.core.calibrate import EngineKv
from stepscope.core.defaults import ANY, Machine
from stepscope.core.estimate import Facts, capacity
from stepscope.core.probes import Room
from stepscope.core.sample import EngineSample, Reading
from stepscope.errors import ConfigError
from stepscope.points import FOUR_BIT
from stepscope.runtime.engine_api import fetch_models
from stepscope.runtime.engine_client import EngineClient
from stepscope.runtime.facts import FactsKeeper, given_of
from stepscope.runtime.load_client import Limits, LoadClient
from stepscope.runtime.load_watch import Watch
from stepscope.runtime.sidecar import scraper_of

_IDLE_POLL_SECONDS = 2.0  # between two looks at an engine that one waits for
_LINE_SECONDS = 5.0  # between two lines of progress where no terminal shows them in place
_TERMINAL_SECONDS = 0.2  # between two updates of the line on a terminal


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that is ready for load, and what is known of it."""

    client: LoadClient
    watch: Watch
    facts: Facts
    given: Given
    room: Room
    kv: EngineKv
    engine_version: str | None
    missing: tuple[str, ...]  # facts that could not be found, with the flag that supplies each
    assumptions: tuple[str, ...]

    @property
    def family(self) -> str:
        """The engine's name in the table of defaults; empty for one whose page is not read."""
        return "vllm" if self.watch.latest is not None else ""

    @property
    def machine(self) -> Machine | None:
        """Model and hardware for the table of defaults.

        None where the GPU's generation is not in the table or the model's layers and active parameters are not known.
        """
        model, bandwidth, gpu = self.facts.model, self.given.bandwidth, self.given.gpu
        if model is None or gpu is None or bandwidth is None or not model.layers or not model.active_params:
            return None
        machine = Machine(
            engine=self.family,
            gpu=gpu.name,
            gpus=self.given.gpu_count,
            peak_bandwidth_bytes_per_second=bandwidth,
            peak_flops=self.given.flops,
            active_params=model.active_params,
            moe=model.kind == "moe",
            four_bit=model.weight_dtype.lower().startswith(FOUR_BIT),
            layers=model.layers,
        )
        return None if machine.generation == ANY else machine


@contextlib.contextmanager
def opened(settings: Settings, until_seconds: float, *, interval_seconds: float = 1.0) -> Iterator[Opened]:
    """The engine of the settings; its connections are closed at the end. Raises ConfigError or FactError."""
    scraper = scraper_of(settings)
    options = scraper.client.options
    key_file = settings[table.ENGINE_API_KEY_FILE] or settings[table.ENGINE_BEARER_TOKEN_FILE]
    api = EngineClient(replace(options, bearer_token_file=key_file))
    try:
        keeper = FactsKeeper(settings, api, os.environ)
        watch = Watch(scraper, interval_seconds)
        reading = watch.read()
        models = fetch_models(api)
        if reading is None and models.value is None:
            raise ConfigError(f"--engine.url: {models.reason or watch.reason}")
        served = [model for model in models.value or [] if model.parent is None] or models.value or []
        name = served[0].id if served else (reading.engines[0].model_name if reading is not None else "")
        if not name:
            raise ConfigError(f"--engine.url: {models.reason or 'the engine names no model'}")
        first = reading.engines[0] if reading is not None else EngineSample(model_name=name, engine="0")
        facts = keeper.for_reading(reading or Reading(time.monotonic(), (first,), single_process=True))
        tokens, _ = capacity(first, facts)
        yield Opened(
            client=LoadClient(options, name, key_file=key_file, limits=Limits(until_seconds=until_seconds)),
            watch=watch,
            facts=facts,
            given=given_of(settings),
            room=Room(served[0].max_model_len if served else None, tokens),
            kv=EngineKv(_pool_bytes(settings, first), tokens, first.kv_cache_dtype),
            engine_version=keeper.engine_version,
            missing=keeper.assumed.missing,
            assumptions=facts.model.assumptions if facts.model is not None else (),
        )
    finally:
        scraper.close()
        api.close()


def _pool_bytes(settings: Settings, sample: EngineSample) -> float | None:
    """Bytes of the KV pool, all GPUs together: as given, else the label, which is per GPU."""
    given = settings[table.KV_POOL_BYTES]
    if given is not None or sample.pool_bytes_label is None:
        return given
    return sample.pool_bytes_label * settings[table.HARDWARE_COUNT]


def wait_until_idle(engine: Opened, progress: Progress, *, wait: bool, until_seconds: float) -> str | None:
    """None once nobody else uses the engine, else one line that says why not."""
    while True:
        state, count = engine.watch.state()
        if state == "unknown":
            progress.note(f"cannot see whether the engine is idle ({engine.watch.reason}): nobody else must use it")
        if state == "left over":
            progress.note(f"the page says {count:.0f} requests and nothing moves: left over from cancelled ones")
        if state != "busy":
            return None
        busy = f"the engine is busy ({count:.0f} requests run or wait)"
        if not wait:
            return f"{busy}: stop its clients, or give --wait"
        if time.monotonic() + _IDLE_POLL_SECONDS > until_seconds:
            return f"{busy} and stayed so until the time was over"
        progress.show(f"waiting: {busy}")
        time.sleep(_IDLE_POLL_SECONDS)


class Progress:
    """One line on standard error, rewritten on a terminal and repeated now and then elsewhere."""

    def __init__(self, command: str, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._prefix = f"stepscope {command}: "
        self._terminal = self._stream is not None and self._stream.isatty()
        self._last_seconds = float("-inf")
        self._shown = 0
        self._notes: set[str] = set()
        self.left = ""  # said after every line: how much time is left

    def show(self, text: str) -> None:
        """What is going on."""
        now = time.monotonic()
        if self._stream is None or now - self._last_seconds < (_TERMINAL_SECONDS if self._terminal else _LINE_SECONDS):
            return
        self._last_seconds = now
        line = self._prefix + text + self.left
        if self._terminal:
            self._write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        else:
            self._write(line + "\n")

    def note(self, text: str) -> None:
        """Something to keep; each text once."""
        if text not in self._notes:
            self._notes.add(text)
            self.clear()
            self._write(f"{self._prefix}{text}\n")

    def clear(self) -> None:
        """Take the line away."""
        if self._terminal and self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


class TerminationAsInterrupt:
    """Within it, SIGTERM ends the program as Ctrl-C does: through every `finally`."""

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    @staticmethod
    def _interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt
