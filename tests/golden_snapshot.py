"""One fixed snapshot, made of recorded pages with fixed clocks; what `/metrics` says of it is golden/metrics.txt.

`.venv/bin/python tests/golden_snapshot.py` writes that file anew; the difference then wants a reader.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recorded_pages import agents_join
from stepscope.core.assume import Calibration, Given, assume
from stepscope.core.hardware import Gpu
from stepscope.core.model_spec import from_numbers
from stepscope.core.observer import Memory, Policy, observe
from stepscope.core.snapshot import EngineView, Snapshot
from stepscope.core.step_model import LoadRange
from stepscope.engines import read
from stepscope.metrics import OUTCOMES
from stepscope.runtime.collector import SnapshotCollector, make_registry, render

GOLDEN = Path(__file__).resolve().parent / "golden" / "metrics.txt"

PAGES = 22  # at the last one eight requests decode and a prompt is being computed: nearly every series is there
# What an operator of the recorded engine would give: weights and KV of its model, a calibration by hand.
MODEL = replace(from_numbers(112e6, 32_768.0, 28e6, name="tiny-llama"), kind="dense")
GIVEN = Given(
    gpu=Gpu("H100-SXM", 3.35e12, 989e12, 1979e12, 80e9, "NVIDIA H100 data sheet"),
    peak_bandwidth_bytes_per_second=40e9,
    peak_flops=1e12,
    calibration=Calibration(
        effective_bandwidth_bytes_per_second=20e9,
        step_overhead_seconds=0.010,
        sequence_cost_seconds=0.002,
        prefill_cost_seconds_per_token=6e-4,
        identity="0123456789ab",
        valid_range=LoadRange(max_sequences=64),
        residual_ratio=0.05,
        samples=40,
        model="tiny-llama",
    ),
)
POLICY = Policy(1.0, 10.0, 5.0, objective_tokens_per_second=20.0, headroom=0.9, objective_ttft_seconds=2.0)
VERSIONS = ("0.0.0", "golden", "3.11.0")  # not the real ones: the file must not change with them


def golden_snapshot(pages: int = PAGES) -> Snapshot:
    """The snapshot after `pages` pages; its engine was sampled at that page's time."""
    facts, assumed = assume(GIVEN, MODEL, 1, "0.32.0", ())
    assumed = replace(assumed, baseline_residual_ratio=0.04)  # of what the engine's pages taught beside the calibration
    memories: dict[str, Memory] = {}
    views: tuple[EngineView, ...] = ()
    for at, text in agents_join()[:pages]:
        reading = read(text, at)
        assert reading is not None
        # One dropped value, so that its counter is there.
        reading = replace(reading, invalid_values=(("0", "kv_usage", 1),) if views == () else ())
        memories, views = observe(memories, reading, facts, POLICY)
    return Snapshot(
        *VERSIONS,
        engine_up=True,
        engine_ever_up=True,
        scrapes=(pages, *range(1, len(OUTCOMES))),
        scrape_duration_seconds=0.0125,
        last_sample_unix_seconds=1_790_000_000.5,
        engines=views,
        assumed=assumed,
    )


def page_of(snapshot: Snapshot, *, age_seconds: float = 1.0, hold_seconds: float = 90.0, accept: str = "") -> str:
    """The page that a scraper gets `age_seconds` after the last sample."""
    at = snapshot.engines[0].at_seconds if snapshot.engines else 0.0
    collector = SnapshotCollector(lambda: snapshot, lambda: at + age_seconds, hold_seconds)
    return render(make_registry(collector), accept)[0].decode()


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(page_of(golden_snapshot()))
