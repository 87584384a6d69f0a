"""The defaults of engines nobody calibrated: complete, sane, and as good as claimed on the measurements."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from shared_data import REPOSITORY, shared_path
from stepscope.core.defaults import (
    ANY,
    COEFFICIENTS,
    GENERATIONS,
    SLOWEST,
    Machine,
    coefficients,
    default_law,
    default_prior,
    find_row,
    prices_of,
)
from stepscope.core.defaults_table import TABLE
from stepscope.core.fit import relative_error
from stepscope.core.law_terms import TERMS
from stepscope.core.nnls import cholesky
from stepscope.core.score import score
from stepscope.core.step_model import Load, WeightBytes, predict
from stepscope.points import group, machine_of, point_of, read_rows

QWEN_8B = Machine("vllm", "H100-SXM", 1, 3.35e12, 989e12, 8.2e9, layers=36)


def test_there_is_a_row_for_every_engine_generation_and_kind() -> None:
    """Also for those never measured: others stand in, and say so with no series of their own."""
    for engine in ("vllm", "sglang", "trtllm", "fastertransformer", "tgi", ""):
        for gpu in ("A100-80GB-SXM", "h200-sxm", "B200-SXM", "RTX-4090", ""):
            for moe in (False, True):
                row = find_row(TABLE, replace(QWEN_8B, engine=engine, gpu=gpu, moe=moe))
                assert 0.2 < row.low <= 1.0 <= row.high < 5.0
    assert TABLE[("vllm", "ampere", "dense")].series == 0
    assert TABLE[("vllm", "hopper", "dense")].series == 6


@pytest.mark.parametrize("key", TABLE, ids=str)
def test_dense_rows_never_read_faster_than_the_data_sheet(key: tuple[str, str, str]) -> None:
    """And no price of any row is negative."""
    row = TABLE[key]
    assert min(coefficients(row)) >= 0.0
    if key[2] == "dense":
        assert min(row.weight_reads, row.kv_reads) >= 1.0


def test_generations_are_told_from_names_of_gpus() -> None:
    """By how they begin, whatever the case."""
    assert replace(QWEN_8B, gpu="gh200-96GB").generation == "hopper"
    assert replace(QWEN_8B, gpu="L40S").generation == ANY
    assert set(GENERATIONS.values()) == {"ampere", "hopper", "blackwell"}


def test_layers_are_guessed_from_the_size() -> None:
    """Llama 8B, 70B and GPT-3 have 32, 80 and 96."""
    for params, layers in ((7.5e9, 32), (69.5e9, 80), (175e9, 96)):
        assert replace(QWEN_8B, layers=None, active_params=params).layer_count == pytest.approx(layers, rel=0.15)
    assert QWEN_8B.layer_count == 36


def test_one_gpu_pays_no_all_reduce_and_links_differ() -> None:
    """A hidden size of 8,500 in 80 layers over NVLink: some microseconds per token; over PCIe fourteen times that."""
    eight = Machine("vllm", "H100-SXM", 8, 8 * 3.35e12, 8 * 989e12, 69.5e9, layers=80)
    assert QWEN_8B.reduce_seconds_per_token == 0.0
    assert 5e-6 < eight.reduce_seconds_per_token < 2e-5
    assert replace(eight, gpu="L40S").reduce_seconds_per_token == pytest.approx(
        eight.reduce_seconds_per_token * 450 / 32
    )


def test_prices_are_linear_in_the_coefficients() -> None:
    """What the pooled fit relies on."""
    one, other = coefficients(TABLE[("vllm", "hopper", "dense")]), coefficients(TABLE[("sglang", "hopper", "dense")])
    machine = replace(QWEN_8B, gpus=4, four_bit=True)
    both = prices_of([a + 2 * b for a, b in zip(one, other, strict=True)], machine)
    apart = [a + 2 * b for a, b in zip(prices_of(one, machine), prices_of(other, machine), strict=True)]
    assert both == pytest.approx(tuple(apart))
    assert len(one) == len(COEFFICIENTS)


def test_a_single_stream_of_an_8b_model_on_an_h100_is_between_peak_and_half_of_it() -> None:
    """16.4e9 bytes at 3.35e12 take 4.9 ms; engines are seen at 7 to 9."""
    law = default_law(find_row(TABLE, QWEN_8B), QWEN_8B, WeightBytes(16.4e9), 147456.0)
    step = predict(law, Load(1, 500))
    assert step is not None
    assert 0.0055 < step.decode_seconds < 0.0098
    assert step.decode_low_seconds < step.decode_seconds < step.decode_high_seconds
    assert law.source == "datasheet"


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"gpu": "B200-SXM"}, True),
        ({"gpu": "A100-80GB-SXM"}, False),
        ({"gpu": "RTX4090"}, False),
        ({"engine": "sglang"}, False),
        ({"moe": True}, False),
        ({"active_params": 0.6e9}, False),
        ({"active_params": None}, False),
    ],
)
def test_how_slow_a_healthy_engine_may_be_is_known_only_of_kinds_that_were_measured(
    change: dict[str, Any], known: bool
) -> None:
    """Dense models from 7.5e9 parameters on vLLM, on Hopper and Blackwell."""
    machine = replace(QWEN_8B, **change)
    law = default_law(find_row(TABLE, machine), machine, WeightBytes(16.4e9), 147456.0)
    assert law.slowest == (SLOWEST if known else None)


def test_the_prior_is_the_pooled_law_with_room_around_it() -> None:
    """Spread above 0 for every term, the mean never below what the data sheet forbids."""
    for machine in (QWEN_8B, replace(QWEN_8B, moe=True), replace(QWEN_8B, peak_flops=None, active_params=None)):
        prior = default_prior(find_row(TABLE, machine), machine)
        assert len(prior.mean) == len(TERMS)
        assert min(prior.spread) > 0.0
        assert all(mean >= low for mean, low in zip(prior.mean, prior.least, strict=True))


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "mixture of experts"])
def test_prices_scatter_together_in_a_way_that_can_be(moe: bool) -> None:
    """Widths above 0; correlations that some prices can have: no combination of prices has a negative variance."""
    machine = replace(QWEN_8B, moe=moe)
    row = find_row(TABLE, machine)
    prior, alone = default_prior(row, machine), default_prior(replace(row, scatter=None), machine)
    assert row.scatter is not None
    assert min(row.scatter.width) > 0.0
    assert [len(line) for line in row.scatter.correlation] == list(range(len(TERMS)))
    assert prior.spread == pytest.approx([s * w for s, w in zip(alone.spread, row.scatter.width, strict=True)])
    whole = [[*line, 1.0] for line in row.scatter.correlation]
    whole = [[whole[max(i, j)][min(i, j)] for j in range(len(TERMS))] for i in range(len(TERMS))]
    factor = cholesky(whole)
    assert min(factor[i][i] for i in range(len(TERMS))) > 0.1
    # Alone, a price is held by its spread only; together, knowing the others leaves less room, never more.
    for i, spread in enumerate(prior.spread):
        assert prior.precision[i][i] >= (1.0 - 1e-9) / spread**2
        assert alone.precision[i][i] == pytest.approx(1.0 / alone.spread[i] ** 2)


@pytest.mark.parametrize("file", ["silicon_dense_vllm", "silicon_dense_trtllm", "silicon_dense_sglang"])
def test_public_sweeps_are_predicted_without_calibration(file: str) -> None:
    """In sample (the table was fitted on them): median at most 6 %, 85 % within 15 %. Left out: docs/accuracy.md."""
    errors = []
    for rows in group(read_rows(shared_path("data", "measured", f"{file}.jsonl")), "series").values():
        machine = machine_of(rows)
        assert machine is not None
        points = [point_of(row, True) for row in rows]
        for point in points:
            weights = WeightBytes(point.weight_bytes or 0.0)
            law = default_law(find_row(TABLE, machine), machine, weights, point.kv_bytes_per_token)
            errors.append(relative_error(law, point))
    found = score(errors)
    assert found.median_abs_error <= 0.06
    assert found.share_within_15pct >= 0.85


@pytest.mark.slow
def test_the_committed_table_is_what_the_measurements_give() -> None:
    """Fitted anew from the public sweeps: not a digit differs."""
    shared = shared_path("data", "measured").parent.parent
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "accuracy_pool.py"), "--check"]
    checked = subprocess.run(command, env=os.environ | {"STEPSCOPE_SHARED": str(shared)}, timeout=110, check=False)
    assert checked.returncode == 0
