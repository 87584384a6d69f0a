"""What measured probes say: bandwidths of the short and the long run, noise, and what to check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_configs import load_config
from stepscope.core.assume import Given
from stepscope.core.calibrate import EngineKv, Measured, advice, bandwidths, calibration_of, spread
from stepscope.core.fit import Fit, fit
from stepscope.core.hardware import Gpu
from stepscope.core.law_terms import Point
from stepscope.core.model_spec import from_hf_config
from stepscope.core.probes import Probe

MODEL = from_hf_config(load_config("qwen3-8b.json"), name="Qwen/Qwen3-8B")
WEIGHTS, PER_TOKEN = MODEL.weights.read_bytes(1.0), 147_456.0
H100 = Given(gpu=Gpu("H100-SXM", 3.35e12, 989e12, 1979e12, 80e9, "NVIDIA H100 data sheet"))


def measured(streams: int, tokens: float, seconds: float, *, prefill: float = 0.0, **more: float) -> Measured:
    probe = Probe("mixed" if prefill else "decode", streams, round(tokens), 16 if prefill else 0)
    point = Point(streams, streams * tokens, prefill, seconds, WEIGHTS, PER_TOKEN)
    return Measured(probe, point, seconds, seconds, streams * tokens, 1000.0, 1e4, **more)


def runs(
    *, bandwidth: float = 2e12, kv_bandwidth: float = 2e12, overhead: float = 0.0, prefill_cost: float = 2.4e-5
) -> list[Measured]:
    """Probes of an engine that follows the plain law exactly."""
    loads = [(1, 300, 0), (32, 300, 0), (32, 9000, 0), (1, 16_000, 0), (8, 2000, 0), (8, 500, 100), (8, 2000, 200)]
    return [
        measured(
            n, tokens,
            overhead + WEIGHTS / bandwidth + n * tokens * PER_TOKEN / kv_bandwidth + prefill_cost * prefill,
            prefill=prefill,
        )
        for n, tokens, prefill in loads
    ]  # fmt: skip


def fitted(found: list[Measured]) -> Fit:
    return fit([one.point for one in found])


def test_both_runs_of_a_plain_engine_give_the_same_bandwidth() -> None:
    """Without overhead the short run tells it as well as the long one."""
    found = runs()
    both = bandwidths(found, fitted(found), prior_known=False)
    assert both is not None
    assert both.short == pytest.approx(2e12, rel=0.01)
    assert both.long == pytest.approx(2e12, rel=0.01)
    assert advice(both, found, fitted(found), MODEL, Given(), EngineKv()) == []


def test_fewer_kv_bytes_than_assumed_show_as_a_long_run_that_is_too_fast() -> None:
    """Quantised KV, shared prefixes, sliding windows: each is named, with what engine and model say."""
    found = runs(kv_bandwidth=4e12)
    both = bandwidths(found, fitted(found), prior_known=False)
    assert both is not None
    assert both.disagreement == pytest.approx(1.0, abs=0.03)
    lines = advice(both, found, fitted(found), MODEL, H100, EngineKv(cache_dtype="fp8"))
    assert "faster than the data sheet's 3.35e+12" in lines[0]
    assert all(word in lines[1] for word in ("prefix caching", "engine: fp8", "assumed: bfloat16", "sliding windows"))
    assert "or 3.78 ms of the short run's 7.58 ms" in lines[1]


def test_a_slow_long_run_names_the_weights() -> None:
    """Weights that are smaller than assumed make the short run look fast."""
    found = runs(bandwidth=4e12)
    both = bandwidths(found, fitted(found), prior_known=False)
    assert both is not None
    assert both.disagreement == pytest.approx(-0.5, abs=0.03)
    (line,) = advice(both, found, fitted(found), MODEL, Given(), EngineKv())
    assert "quantised weights" in line


def test_an_overhead_that_the_data_sheet_expects_is_no_disagreement() -> None:
    """The short run is then known between two ends, and the long one lies between them."""
    found = runs(overhead=2e-3, bandwidth=2.6e12, kv_bandwidth=2.4e12)
    law = fitted(found)
    both = bandwidths(found, law, prior_known=True)
    assert both is not None
    assert both.short < both.long
    assert both.short_most is not None
    assert both.disagreement == 0.0


def test_too_few_probes_say_nothing() -> None:
    """No single stream, or no second context of the same streams."""
    found = runs()
    assert bandwidths(found[1:3], fitted(found), prior_known=False) is None
    assert bandwidths(found[:2], fitted(found), prior_known=False) is None
    backwards = [found[0], replace(found[3], point=replace(found[3].point, itl_seconds=1e-3))]
    assert bandwidths(backwards, fitted(found), prior_known=False) is None


def test_noise_is_what_the_same_load_differs_by() -> None:
    """Median over the loads that were measured twice."""
    found = runs()
    assert spread(found) is None
    twice = [*found, replace(found[0], point=replace(found[0].point, itl_seconds=found[0].point.itl_seconds * 1.1))]
    assert spread(twice) == pytest.approx(0.1 / 1.05)


def test_cached_prompts_preemptions_and_the_pools_own_bytes_are_said() -> None:
    """Each with its figures."""
    found = runs()
    found[0] = replace(found[0], cached_tokens=500.0, prompt_tokens=1000.0, preemptions=1.0)
    half = EngineKv(pool_bytes=50_000 * PER_TOKEN / 2, capacity_tokens=50_000.0)
    assert half.bytes_per_token == PER_TOKEN / 2
    lines = advice(None, found, fitted(found), MODEL, H100, half)
    assert "500 prompt tokens came from a prefix cache" in lines[0]
    assert "preempted" in lines[1]
    assert "keeps 73,728 bytes of KV per token" in lines[2]
    assert "says 147,456" in lines[2]
    assert EngineKv(capacity_tokens=1.0).bytes_per_token is None


def test_the_file_holds_the_law_its_range_and_where_it_comes_from() -> None:
    """All bandwidths finite, so that a page can show them."""
    found = runs(overhead=1e-3)
    law = fitted(found)
    points = [one.point for one in found]
    made = calibration_of(
        law, points, H100, MODEL, engine_version="0.32.0", noise_ratio=0.02, date="2026-01-31", stepscope_version="1"
    )
    assert made.kv_bandwidth_bytes_per_second == pytest.approx(2e12, rel=0.05)
    assert made.valid_range == law.valid_range
    assert (made.model, made.gpu, made.gpu_count, made.dtype) == ("Qwen/Qwen3-8B", "H100-SXM", 1, "bfloat16")
    assert (made.kv_dtype, made.noise_ratio, made.samples) == ("bfloat16", 0.02, 7)


def test_a_price_of_nothing_becomes_a_bandwidth_that_could_not_have_been_seen() -> None:
    """Finite: reading everything then takes a hundredth of the shortest step."""
    found = [measured(n, 300, 8e-3) for n in (1, 2, 4)]
    law = fitted(found)
    free = replace(law, prices=(0.0,) * len(law.prices))
    points = [one.point for one in found]
    made = calibration_of(
        free, points, Given(), MODEL, engine_version=None, noise_ratio=None, date="2026-01-31", stepscope_version="1"
    )
    assert made.effective_bandwidth_bytes_per_second == pytest.approx(WEIGHTS / (0.01 * 8e-3))
    assert made.gpu is None
