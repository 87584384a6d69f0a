"""Puts one probe on an engine, measures while the load stands still, and takes it away again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.core.calibrate import Measured
from stepscope.core.engine_span import EngineSpan, active, engine_span, requests
from stepscope.core.estimate import Facts
from stepscope.core.law_terms import Point
from stepscope.core.load_trace import ClientSpan, client_span
from stepscope.core.probes import MIN_STEPS, MIXED_WAVES, Probe
from stepscope.errors import StepscopeError
from stepscope.runtime.load_client import Limits, LoadClient
from stepscope.runtime.load_crew import Crew, Work
from stepscope.runtime.load_watch import Watch

_LONGEST_OUTPUT = 8192  # tokens of a stream that is hung up on when it has been measured
_POLL_SECONDS = 0.05
_STUCK_SECONDS = 5.0  # nobody new decodes, somebody waits: the engine runs no more at once
_GAUGE_SECONDS = 5.0  # for the engine to notice that everybody hung up: the end of a step, or of a long prompt's chunk
_GAUGE_POLL_SECONDS = 0.2
_ENDLESS = 10**6  # requests of a worker that is stopped from outside
# The engine's tokens in flight are whole blocks and may hold a prompt under way; what lies further from the client's
# count than this is not the load that was put on.
_TOKENS_LOW, _TOKENS_HIGH = 0.8, 1.5


class ProbeError(StepscopeError):
    """A probe could not be measured.

    outcome: as of a request, or foreign, time, slow. streams: how many did run.
    """

    def __init__(self, outcome: str, message: str, streams: int = 0) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.streams = streams


@dataclass(frozen=True, slots=True)
class Bench:
    """The engine under test. until_seconds: time.monotonic at which everything must be over."""

    client: LoadClient
    watch: Watch
    facts: Facts
    until_seconds: float
    longest_tokens: int  # context of one request, prompt and output
    progress: Callable[[str], None]


def measure(bench: Bench, probe: Probe, seconds: float, prompt_seconds: float = math.inf) -> Measured:
    """Run a probe and measure it for at least `seconds`. Raises ProbeError; nothing is left running either way.

    prompt_seconds: how long the first prompts may take all together.
    """
    crew = Crew(bench.client, _works(bench, probe), keep=True)
    bench.watch.readings.clear()
    try:
        bench.watch.start()
        crew.start()
        _wait_for_all(bench, probe, crew, prompt_seconds)
        start = time.monotonic()
        bench.watch.read()
        _hold(bench, probe, crew, start, seconds)
        bench.watch.read()
        end = time.monotonic()
        traces = crew.traces()
    finally:
        crew.stop()
        bench.watch.stop()
    # A request that ended early would thin the load out: the window ends before it.
    if probe.kind == "decode":
        end = min([end, *(trace.ended_seconds for trace in traces if trace.outcome != "running")])
    client = client_span(traces, start, end)
    if client is None:
        raise ProbeError("time", f"{probe}: no two tokens came while it was measured")
    engine = engine_span(bench.watch.readings, bench.facts, start, end)
    if engine is not None and engine.running_most > probe.streams:
        raise ProbeError(
            "foreign", f"{probe}: the engine ran {engine.running_most:.0f} requests at once, not all of them ours"
        )
    whole = engine_span(bench.watch.readings, bench.facts, 0.0, math.inf)
    firsts = sorted(trace.arrivals[0][0] for trace in traces if trace.arrivals)[: probe.streams]
    prefill_seconds = max(firsts[-1] - min(trace.sent_seconds for trace in traces), 1e-6)
    return _measured(bench, probe, client, engine, whole, len(firsts) * probe.prompt_tokens / prefill_seconds)


def refresh_gauges(client: LoadClient, watch: Watch, seconds: float = _GAUGE_SECONDS) -> bool:
    """See the engine idle again after everything was cancelled; False if that takes longer than `seconds`.

    vLLM's gauges stand as they were until the next step, so each look is preceded by a tiny request.
    """
    until = time.monotonic() + seconds
    while True:
        client.limits = Limits(seconds, until)
        client.stream(8, 2).run()
        reading = watch.read()
        if reading is None or not requests(reading):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(_GAUGE_POLL_SECONDS)


def _works(bench: Bench, probe: Probe) -> list[Work]:
    if probe.kind == "decode":
        output = max(1, min(_LONGEST_OUTPUT, bench.longest_tokens - probe.prompt_tokens))
        return [Work(probe.prompt_tokens, output)] * probe.streams
    out = probe.output_tokens
    # First outputs of all lengths: the streams are then replaced one by one, not all at a time.
    return [
        Work(probe.prompt_tokens, out, _ENDLESS, first_output_tokens=max(1, round(out * (number + 1) / probe.streams)))
        for number in range(probe.streams)
    ]


def _wait_for_all(bench: Bench, probe: Probe, crew: Crew, prompt_seconds: float) -> None:
    """Until every stream decodes (in a mixed probe: until as many have begun)."""
    most, since = 0, time.monotonic()
    until = since + prompt_seconds
    while True:
        _check(bench, probe, crew)
        begun = crew.decoding if probe.kind == "decode" else crew.started
        if begun >= probe.streams:
            return
        now = time.monotonic()
        if begun > most:
            most, since = begun, now
        latest = bench.watch.readings[-2:]
        running, waiting = active(*latest) if len(latest) == 2 else (0.0, 0.0)
        if waiting and running <= begun and now - since > _STUCK_SECONDS:
            raise ProbeError("rejected", f"{probe}: the engine runs no more than {begun} of these at once", begun)
        if now > until:
            raise ProbeError("slow", f"{probe}: after {prompt_seconds:.0f} s {begun} prompts were done", begun)
        bench.progress(f"{probe}: {begun} of {probe.streams} prompts done")
        time.sleep(_POLL_SECONDS)


def _hold(bench: Bench, probe: Probe, crew: Crew, start: float, seconds: float) -> None:
    """Until the load has stood for so long and so many steps or replacements."""
    ended_before = sum(bool(stream.outcome) for stream in crew.streams)
    events_before = sum(len(stream.arrivals) for stream in crew.streams)
    while True:
        _check(bench, probe, crew)
        streams = crew.streams
        steps = (sum(len(stream.arrivals) for stream in streams) - events_before) / probe.streams
        waves = (sum(bool(stream.outcome) for stream in streams) - ended_before) / probe.streams
        if probe.kind == "decode":
            share = min((time.monotonic() - start) / seconds, steps / MIN_STEPS)
            if waves:  # a stream ran into its length: what was measured until then has to do
                return
        else:
            share = min((time.monotonic() - start) / seconds, steps / MIN_STEPS, waves / MIXED_WAVES)
        if share >= 1.0:
            return
        bench.progress(f"{probe}: measured {share:.0%}")
        time.sleep(_POLL_SECONDS)


def _check(bench: Bench, probe: Probe, crew: Crew) -> None:
    failed = crew.failed
    if failed:
        raise ProbeError(failed[0].outcome, f"{probe}: {failed[0].outcome.replace('_', ' ')}: {failed[0].reason}")
    if time.monotonic() >= bench.until_seconds:
        raise ProbeError("time", f"{probe}: the time was over")


def _measured(
    bench: Bench,
    probe: Probe,
    client: ClientSpan,
    engine: EngineSpan | None,
    whole: EngineSpan | None,
    prefill_tokens_per_second: float,
) -> Measured:
    model = bench.facts.model
    sequences = client.sequences
    tokens, itl, prefill = client.tokens_in_flight, client.itl_seconds, client.prefill_tokens_per_step
    per_token = model.kv_read_bytes_per_token(bench.facts.gpu_count) if model is not None else None
    if engine is not None:
        itl = engine.itl_seconds
        # Means per engine; where the page holds several, the client's counts are for all of them together.
        sequences = engine.sequences or client.sequences
        tokens = client.tokens_in_flight * sequences / client.sequences
        if engine.tokens_in_flight and _TOKENS_LOW <= engine.tokens_in_flight / tokens <= _TOKENS_HIGH:
            tokens = engine.tokens_in_flight
        if engine.prefill_tokens_per_step is not None:
            prefill = engine.prefill_tokens_per_step
        per_token = per_token or engine.kv_bytes_per_token
    return Measured(
        probe=probe,
        point=Point(
            sequences=sequences,
            tokens_in_flight=tokens,
            prefill_tokens_per_step=0.0 if probe.kind == "decode" else prefill,
            itl_seconds=itl,
            weight_bytes=model.weights.read_bytes(sequences) if model is not None else None,
            kv_bytes_per_token=per_token,
        ),
        client_itl_seconds=client.itl_seconds,
        engine_itl_seconds=engine.itl_seconds if engine is not None else None,
        client_tokens=client.tokens_in_flight,
        observations=engine.observations if engine is not None else client.observations,
        prefill_tokens_per_second=prefill_tokens_per_second,
        cached_tokens=whole.cached_tokens if whole is not None else 0.0,
        prompt_tokens=whole.prompt_tokens if whole is not None else 0.0,
        preemptions=whole.preemptions if whole is not None else 0.0,
    )
