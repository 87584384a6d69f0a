"""One measured load as a row: what the client saw, what the engine counted, what the step law predicts.

The row is what `stepscope fit --points` reads: sequences, tokens_in_flight, prefill_tokens_per_step, itl_seconds, and
the facts of model and hardware where they are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.core.assume import Given
from stepscope.core.engine_span import EngineSpan
from stepscope.core.estimate import Facts
from stepscope.core.load_trace import ClientSpan, Percentiles, Trace, client_span, percentiles
from stepscope.core.step_model import Load, predict

CLIENT_ITL_EXCESS = 0.10  # of the client's mean ITL over the engine's: the frontend's own delay cancels between tokens
# Of one core, which is all that Python's interpreter lock gives to the threads that read: near 1 tokens wait for it.
CLIENT_CPU_SHARE = 0.8
# Of the mean gap between tokens: how late a thread of the client comes to run. What is that late in noticing a token
# shows in each single gap and in TTFT; in the mean gap only where it grows.
CLIENT_LATE_SHARE = 0.10
SHORT_ANSWERS = 0.1  # of the tokens asked for, missing in the mean: one token of ten may be the end's, without text
# Of the requests' time, between their tokens. With less, this process mostly makes prompts and connections: it is then
# late, and not in reading tokens.
CLIENT_DECODE_SHARE = 0.5
FEW_OBSERVATIONS = 50  # gaps below which client and engine are not compared


UNFAILED = frozenset({"ok", "aborted", "running"})  # aborted: by us, at the end of the time or after Ctrl-C


@dataclass(frozen=True, slots=True)
class LoadAsked:
    """What a row put on the engine. name: as shown; output_tokens: of each request."""

    name: str
    concurrency: int
    requests: int
    input_tokens: float  # mean over the streams
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. window: when the load stood whole, None where it never did (then everything counts).

    seconds: from the first request to the end of the last. cpu_seconds: of this process meanwhile. late_seconds: mean
    time that a thread of this process which wants to run has to wait; None: not measured.
    """

    traces: tuple[Trace, ...]
    window: tuple[float, float] | None
    seconds: float
    cpu_seconds: float
    engine: EngineSpan | None
    late_seconds: float | None = None
    finished: bool = True  # False: the time was over before every request was sent


def row(
    asked: LoadAsked, outcome: Outcome, facts: Facts, given: Given, *, family: str, price_per_hour: float | None
) -> dict[str, Any]:
    """One row, flat where it is for the table and for fit, nested where it is not.

    family: the engine's, as the table of defaults calls it; empty where it is not known.
    """
    traces = outcome.traces
    good = [trace for trace in traces if trace.outcome == "ok"]
    start, end = outcome.window or (0.0, float("inf"))
    client = client_span(traces, start, end)
    load = load_of(client, outcome.engine, facts)
    output = sum(trace.output_tokens for trace in traces)
    speed = output / outcome.seconds if outcome.seconds > 0.0 else None
    itl = _itl(client, outcome.engine)
    found: dict[str, Any] = {
        "load": asked.name,
        "concurrency": asked.concurrency,
        "requests": len(traces),
        "input_tokens": asked.input_tokens,
        "output_tokens": asked.output_tokens,
        "sequences": load.sequences if load else None,
        "tokens_in_flight": load.tokens_in_flight if load else None,
        "prefill_tokens_per_step": load.prefill_tokens_per_step if load else None,
        "itl_seconds": itl,
        "steady": outcome.window is not None,
        "finished": outcome.finished,
        "seconds": outcome.seconds,
        "output_tokens_per_second": speed,
        "outcomes": _counts(trace.outcome for trace in traces),
        "ttft": _percentiles([trace.ttft_seconds for trace in traces]),
        "tpot": _percentiles([trace.tpot_seconds for trace in good]),
        "itl": _percentiles([gap for trace in traces for gap in trace.gaps_seconds]),
        "by_class": _classes(traces),
        "client_itl_seconds": client.itl_seconds if client else None,
        "client_cpu_share": outcome.cpu_seconds / outcome.seconds if outcome.seconds > 0.0 else None,
        "client_late_seconds": outcome.late_seconds,
        "decode_time_share": decode_share(traces),
        "engine_counters": asdict(outcome.engine) if outcome.engine is not None else None,
        "cost_per_million_tokens": price_per_hour / 3600.0 / speed * 1e6 if price_per_hour and speed else None,
        **_prediction(load, itl, facts),
        **facts_columns(facts, given, load.sequences if load else 1.0, outcome.engine, family),
    }
    found["short_answers"] = shortness(good, asked.output_tokens)
    found["client_bottleneck"] = bottleneck(found)
    found["late_delivery"] = delivery(found)
    return found


def load_of(client: ClientSpan | None, engine: EngineSpan | None, facts: Facts) -> Load | None:
    """The mean load: the engine's own figures, the client's where it has none."""
    if client is None:
        return None
    tokens, sequences = client.tokens_in_flight, client.sequences
    prefill = client.prefill_tokens_per_step
    kv_bytes = None
    if engine is not None:
        sequences = sequences if engine.sequences is None else engine.sequences
        tokens = tokens if engine.tokens_in_flight is None else engine.tokens_in_flight
        prefill = prefill if engine.prefill_tokens_per_step is None else engine.prefill_tokens_per_step
        if facts.model is not None and facts.model.hybrid and engine.kv_bytes_per_token:
            kv_bytes = tokens * engine.kv_bytes_per_token
    return Load(sequences, tokens, prefill, kv_bytes=kv_bytes)


def facts_columns(
    facts: Facts, given: Given, sequences: float, engine: EngineSpan | None, family: str
) -> dict[str, Any]:
    """Model and hardware per GPU, by the names that fit reads; what is not known is left out."""
    columns: dict[str, Any] = {"tp": given.gpu_count, "engine": family or None}
    model = facts.model
    if model is not None:
        per_token = model.kv_read_bytes_per_token(given.gpu_count)
        if per_token is None and engine is not None:
            per_token = engine.kv_bytes_per_token
        columns |= {
            "model": model.name,
            "type": model.kind,
            "weight_dtype": model.weight_dtype,
            "kv_dtype": model.kv_dtype,
            "layers": model.layers,
            "active_params": model.active_params,
            "weight_bytes_per_gpu": model.weights.read_bytes(sequences) / given.gpu_count,
            "kv_bytes_per_token_per_gpu": per_token / given.gpu_count if per_token else None,
        }
    if given.gpu is not None:
        columns["gpu"] = given.gpu.name
    if given.bandwidth is not None:
        columns["peak_bandwidth_bytes_per_second"] = given.bandwidth / given.gpu_count
    if given.flops is not None:
        columns["peak_flops"] = given.flops / given.gpu_count
    return {name: value for name, value in columns.items() if value is not None}


def failures(outcomes: Mapping[str, int]) -> int:
    """Requests that ended badly, by neither their own end nor ours."""
    return sum(count for outcome, count in outcomes.items() if outcome not in UNFAILED)


def decode_share(traces: Sequence[Trace]) -> float | None:
    """Of the requests' time, the part between the first token and the last; None where there was no time."""
    total = sum(trace.ended_seconds - trace.sent_seconds for trace in traces)
    between = sum(trace.arrivals[-1][0] - trace.arrivals[0][0] for trace in traces if trace.arrivals)
    return between / total if total > 0.0 else None


def shortness(good: Sequence[Trace], output_tokens: int) -> str | None:
    """Whether the engine stopped before the tokens asked for; None where it did not."""
    mean = sum(trace.output_tokens for trace in good) / len(good) if good else output_tokens
    if mean >= (1.0 - SHORT_ANSWERS) * output_tokens:
        return None
    return f"answers were shorter than asked for: {mean:.3g} of {output_tokens:,} tokens; the engine ends them itself"


def bottleneck(found: Mapping[str, Any]) -> str | None:
    """Why the client itself may have held the figures back; None where it did not."""
    share, late = found["client_cpu_share"], found["client_late_seconds"]
    if share is not None and share > CLIENT_CPU_SHARE:
        return f"this client used {share:.0%} of the one core it can use: its times are too long"
    if found["short_answers"] or (found["decode_time_share"] or 0.0) < CLIENT_DECODE_SHARE:
        return None
    gap = found["itl"]["mean"] if found["itl"] else None  # over the whole row, as the lateness
    if late is not None and gap is not None and late > CLIENT_LATE_SHARE * gap:
        part = f"{late / gap:.0%} of" if late < gap else f"{late / gap:.0f} times"
        return f"this client came {late * 1e3:.2g} ms late to its tokens, {part} the time between two"
    return None


def delivery(found: Mapping[str, Any]) -> str | None:
    """Whether tokens were late on their way, from the engine's step to this client; None where they were not."""
    client, engine = found["client_itl_seconds"], found["engine_counters"]
    if client is None or engine is None or engine["observations"] < FEW_OBSERVATIONS:
        return None
    # The engine's observation is a step, the client's a token.
    per_token = engine["itl_seconds"] / engine["tokens_per_step"]
    if client <= (1.0 + CLIENT_ITL_EXCESS) * per_token:
        return None
    by = "" if found["client_bottleneck"] else "; not by this client: API server, proxy or network"
    return f"tokens came {client / per_token - 1.0:.0%} further apart than the engine made them{by}"


def _itl(client: ClientSpan | None, engine: EngineSpan | None) -> float | None:
    if engine is not None:
        return engine.itl_seconds
    return client.itl_seconds if client is not None else None


def _prediction(load: Load | None, itl: float | None, facts: Facts) -> dict[str, Any]:
    step = predict(facts.law, load) if facts.law is not None and load is not None else None
    return {
        "predicted_itl_seconds": step.itl_seconds if step else None,
        "predicted_step_seconds": step.decode_seconds if step else None,
        "prediction_error": step.itl_seconds / itl - 1.0 if step and itl else None,
        "law_source": facts.law.source if facts.law is not None else None,
    }


def _classes(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """The same percentiles for each class of a mix; empty where there is one class."""
    labels = list(dict.fromkeys(trace.label for trace in traces))
    if len(labels) < 2:
        return []
    found = []
    for label in labels:
        own = [trace for trace in traces if trace.label == label]
        gaps = [gap for trace in own for gap in trace.gaps_seconds]
        found.append(
            {
                "class": label,
                "requests": len(own),
                "ttft": _percentiles([trace.ttft_seconds for trace in own]),
                "itl": _percentiles(gaps),
                "tokens_per_second_per_user": len(gaps) / sum(gaps) if sum(gaps) > 0.0 else None,
            }
        )
    return found


def _percentiles(values: Sequence[float | None]) -> dict[str, float] | None:
    found: Percentiles | None = percentiles([value for value in values if value is not None])
    return asdict(found) if found is not None else None


def _counts(words: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
