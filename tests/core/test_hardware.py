"""The GPU table and the search in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_data import shared_path
from stepscope.core.hardware import Gpu, find_gpu, normal_name, read_gpus
from stepscope.errors import FactError
from stepscope.runtime.tables import shipped_gpus

ROW: dict[str, Any] = {
    "name": "X1-SXM",
    "aliases": ["X1"],
    "peak_bandwidth_gigabytes_per_second": 1000,
    "bf16_dense_teraflops": 100.5,
    "fp8_dense_teraflops": None,
    "memory_gigabytes": 80,
    "source": "data sheet",
}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100-SXM", "H100-SXM"),
        ("H100", "H100-SXM"),
        ("h100-sxm5-80gb", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("rtx_4090", "RTX4090"),
        ("AMD Instinct MI300X", "MI300X"),
        (" l40s ", "L40S"),
    ],
)
def test_names_of_drivers_and_people_find_the_gpu(spelling: str, name: str) -> None:
    """Case, separators and vendor words do not matter."""
    assert find_gpu(spelling, shipped_gpus()).name == name


def test_a_name_that_several_gpus_share_lists_the_choices() -> None:
    """ "A100" may mean four GPUs with three bandwidths."""
    with pytest.raises(
        FactError, match="GPU 'A100' could be A100-40GB-SXM, A100-80GB-SXM, A100-40GB-PCIe, A100-80GB-PCIe"
    ):
        find_gpu("A100", shipped_gpus())


def test_an_unknown_name_shows_the_nearest() -> None:
    """A slip of the finger is answered with what was meant; a name like no other with all that are known."""
    with pytest.raises(FactError, match="GPU 'RTX4091' is not in the table; nearest: RTX4090"):
        find_gpu("RTX4091", shipped_gpus())
    with pytest.raises(FactError, match="is not in the table; known: H100-SXM, "):
        find_gpu("???", shipped_gpus())


def test_h100_has_the_figures_of_the_worked_numbers() -> None:
    """3.35e12 B/s, 989e12 FLOP/s, 80e9 B; and the RTX 4090 of the second example."""
    gpus = shipped_gpus()
    h100, rtx = find_gpu("H100-SXM", gpus), find_gpu("RTX4090", gpus)
    assert (h100.peak_bandwidth_bytes_per_second, h100.peak_flops, h100.memory_bytes) == (3.35e12, 989e12, 80e9)
    assert (rtx.peak_bandwidth_bytes_per_second, rtx.peak_flops) == (1008e9, 165.2e12)


def test_every_row_agrees_with_the_published_figures() -> None:
    """The table carries each row of the collected data sheets unchanged."""
    published = json.loads(shared_path("data", "facts", "gpus.json").read_text())
    gpus = {gpu.name: gpu for gpu in shipped_gpus()}
    assert gpus.keys() == published.keys()
    for name, row in published.items():
        gpu = gpus[name]
        assert gpu.peak_bandwidth_bytes_per_second == row["hbm_gbs"] * 1e9, name
        assert gpu.peak_flops == pytest.approx(row["bf16_dense_tflops"] * 1e12), name
        assert gpu.memory_bytes == row["mem_gb"] * 1e9, name
        fp8 = row["fp8_dense_tflops"]
        assert gpu.fp8_flops == (None if fp8 is None else pytest.approx(fp8 * 1e12)), name


def test_every_row_names_its_source_and_is_plausible() -> None:
    """fp8 is about twice bf16, and no GPU reads its memory more than about 60 times a second."""
    for gpu in shipped_gpus():
        assert gpu.source
        assert gpu.fp8_flops is None or 1.9 < gpu.fp8_flops / gpu.peak_flops < 2.1, gpu.name
        assert 10 < gpu.peak_bandwidth_bytes_per_second / gpu.memory_bytes < 60, gpu.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "table: row 0 has no name"),
        ({"name": 5}, "table: row 0 has no name"),
        ({"source": None}, "table: X1-SXM: source is missing"),
        ({"memory_gigabytes": "80"}, "table: X1-SXM: memory_gigabytes must be a positive number"),
        ({"bf16_dense_teraflops": -1}, "table: X1-SXM: bf16_dense_teraflops must be a positive number"),
        ({"fp8_dense_teraflops": float("nan")}, "table: X1-SXM: fp8_dense_teraflops must be a positive number"),
        ({"aliases": "X1"}, "table: X1-SXM: aliases must be a list of names"),
    ],
)
def test_a_wrong_row_is_named(change: dict[str, Any], message: str) -> None:
    """One line says which row and which key."""
    with pytest.raises(FactError, match=message):
        read_gpus([ROW | change], "table")


def test_two_rows_cannot_share_a_name() -> None:
    """An alias that another row has is an error, not a silent choice."""
    with pytest.raises(FactError, match="table: Y: the name x1 is also X1-SXM's"):
        read_gpus([ROW, ROW | {"name": "Y", "aliases": ["x-1"]}], "table")


@given(st.text(max_size=200))
def test_any_text_finds_a_gpu_or_raises_one_line(text: str) -> None:
    """Control characters, emptiness and length do no harm."""
    found: Gpu | None = None
    reason = ""
    try:
        found = find_gpu(text, shipped_gpus())
    except FactError as error:
        reason = str(error)
    assert "\n" not in reason
    assert (found is None) == bool(reason)
    assert found is None or normal_name(text) in {normal_name(name) for name in (found.name, *found.aliases)}
