"""The landing page: what an operator sees through `kubectl port-forward`. One plain document, no script."""

from __future__ import annotations

from html import escape

from stepscope.core.snapshot import EngineView, Snapshot

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
td + td, th + th { text-align: right; font-variant-numeric: tabular-nums; } td.text { text-align: left; }
.bad { border-left: .3rem solid #c22; padding-left: .7rem; } .note { opacity: .75; }
"""

_CAUSE_SENTENCES = {
    "preemption": "The engine preempted requests: KV memory is too small for the load, and they wait to be recomputed.",
    "prefill": "Prompt chunks share the steps: they add {interference} to each token.",
    "unexplained": "Slower than the load explains, by {drift}.",
    "objective_unreachable": "Weights and overhead alone take longer than the promised step: no load would meet it.",
    "context": "The requests hold more context than usual: each step reads {tokens} tokens of KV.",
    "load": "More requests and context than fit at the promised speed: each step reads {tokens} tokens of KV.",
    "none": "As fast as the load allows.",
}
_STATE_SENTENCES = {
    "asleep": "The engine sleeps.",
    "no_model": "Nothing to predict with: model or GPU facts are missing (see below).",
    "no_capacity": "The KV capacity is unknown, so tokens in flight cannot be told.",
    "idle": "Nobody is being served.",
    "stale": "The engine says that it is busy, but nothing moves.",
    "warming_up": "Watching; a verdict needs a minute of an engine's life and fifty observations.",
    "prefilling": "Prompts are being computed; decoding cannot be judged meanwhile.",
    "too_few_observations": "Too few tokens in the window for a verdict.",
    "out_of_range": "The load is beyond what the calibration has seen.",
    "measuring": "",
}


def milliseconds(value: float | None) -> str:
    """A time for reading."""
    return "-" if value is None else f"{value * 1e3:.1f} ms"


def tokens(value: float | None) -> str:
    """A count of tokens for reading."""
    return "-" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A ratio for reading."""
    return "-" if value is None else f"{value:+.0%}"


def sentence(view: EngineView) -> str:
    """What is going on, in words."""
    parts = [_STATE_SENTENCES[view.state]]
    if view.cause is not None:
        interference = view.prefill_interference_ratio
        # Share of the whole, told as what it adds to the rest.
        added = "-" if interference is None else f"{interference / max(1e-9, 1.0 - interference):.0%}"
        parts.append(
            _CAUSE_SENTENCES[view.cause].format(
                interference=added, drift=percent(view.drift_ratio), tokens=tokens(view.tokens_in_flight)
            )
        )
    return " ".join(part for part in parts if part)


def landing_page(snapshot: Snapshot, now_seconds: float) -> str:
    """The whole document."""
    body = ["<h1>stepscope</h1>"]
    for line in snapshot.config_errors:
        body.append(f'<p class="bad">Running on defaults, the configuration is wrong: {escape(line)}</p>')
    if not snapshot.engine_up:
        why = escape(snapshot.last_error or "no answer yet")
        what = "is not answering" if snapshot.engine_ever_up else "has not come up yet"
        body.append(f'<p class="bad">The engine {what}: {why}</p>')
    for view in snapshot.engines:
        body.append(_engine(view, now_seconds))
    assumed = snapshot.assumed
    if assumed.missing:
        body.append("<h2>Missing</h2><ul>" + "".join(f"<li>{escape(line)}</li>" for line in assumed.missing) + "</ul>")
    if assumed.assumptions:
        body.append("<h2>Assumed</h2><ul>")
        body.extend(f"<li>{escape(line)}</li>" for line in assumed.assumptions)
        body.append("</ul>")
    body.append(
        '<p class="note">'
        '<a href="metrics">metrics</a> · <a href="api/v1/snapshot">snapshot</a> · '
        '<a href="api/v1/history">history</a> · <a href="config">configuration</a> · '
        f"stepscope {escape(snapshot.version)}</p>"
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="5"><title>stepscope</title><style>{_STYLE}</style></head><body>'
        + "\n".join(body)
        + "</body></html>\n"
    )


def _engine(view: EngineView, now_seconds: float) -> str:
    step = view.predicted
    rows = [
        ("Measured inter-token latency", milliseconds(view.itl_mean_seconds)),
        ("Predicted inter-token latency", milliseconds(view.predicted_itl_seconds)),
        ("Drift", percent(view.drift_ratio)),
        ("Predicted decode step", milliseconds(step.decode_seconds if step else None)),
        ("Target of the decode step", milliseconds(view.target_step_seconds)),
        ("Tokens in flight", tokens(view.tokens_in_flight)),
        ("Token budget, speed", tokens(view.speed_budget_tokens)),
        ("Token budget, memory", tokens(view.memory_budget_tokens)),
        ("Sequences per step", "-" if view.decode_batch_size is None else f"{view.decode_batch_size:.1f}"),
        ("Prompt tokens per step", tokens(view.prefill_tokens_per_step)),
    ]
    if step is not None and view.prefill_known:
        rows += [
            ("of it: overhead", milliseconds(step.overhead_seconds)),
            ("of it: weights", milliseconds(step.weights_seconds)),
            ("of it: KV cache", milliseconds(step.kv_cache_seconds)),
            ("of it: sequences", milliseconds(step.sequences_seconds)),
            ("of it: prefill", milliseconds(step.prefill_seconds)),
        ]
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return (
        f"<h2>{escape(view.model_name or 'model')} · engine {escape(view.engine)}</h2>"
        f"<p><strong>{escape(view.state)}</strong> {escape(sentence(view))}</p>"
        f"<table>{cells}</table>"
        f'<p class="note">sampled {max(0.0, now_seconds - view.at_seconds):.0f} s ago</p>'
    )
