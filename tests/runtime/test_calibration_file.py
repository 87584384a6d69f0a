"""A calibration file is read whole or refused with one line that names the file and the key, and written whole."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.assume import Calibration
from stepscope.core.step_model import LoadRange
from stepscope.errors import ConfigError
from stepscope.runtime.calibration_file import read_calibration, write_calibration

WHOLE = """
parameters:
  effective_bandwidth_bytes_per_second: 2.01e12
  step_overhead_seconds: 0.001
  sequence_cost_seconds: 2e-5
  prefill_cost_seconds_per_token: 0.00003
range: {max_sequences: 64, max_tokens_in_flight: 200000, max_prefill_tokens_per_step: 2048}
residuals: {median_abs_error: 0.04, samples: 40}
provenance: {model: Qwen/Qwen3-8B, gpu: H100-SXM, gpu_count: 1, engine_version: 0.32.0, dtype: bfloat16,
             date: 2026-01-31, stepscope_version: 0.1.0}
"""
BANDWIDTH = "parameters: {effective_bandwidth_bytes_per_second: 2.0e+12}\n"


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "calibration.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    """Numbers without a sign in the exponent are text to YAML 1.1; they are numbers here."""
    found = read_calibration(write(tmp_path, WHOLE))
    assert found.effective_bandwidth_bytes_per_second == 2.01e12
    assert found.sequence_cost_seconds == 2e-5
    assert found.prefill_cost_seconds_per_token == 3e-5
    assert found.valid_range == LoadRange(64.0, 200_000.0, 2048.0)
    assert (found.residual_ratio, found.samples) == (0.04, 40)
    assert (found.model, found.gpu, found.gpu_count, found.engine_version) == ("Qwen/Qwen3-8B", "H100-SXM", 1, "0.32.0")


def test_what_is_not_given_is_zero_or_unknown(tmp_path: Path) -> None:
    """Only the bandwidth is needed."""
    found = read_calibration(write(tmp_path, BANDWIDTH))
    assert (found.step_overhead_seconds, found.sequence_cost_seconds, found.prefill_cost_seconds_per_token) == (0, 0, 0)
    assert (found.valid_range, found.residual_ratio, found.samples, found.model) == (None, None, None, None)


def test_its_identity_is_that_of_its_bytes(tmp_path: Path) -> None:
    """The same content is the same calibration, wherever it lies."""
    one = read_calibration(write(tmp_path, BANDWIDTH)).identity
    assert one == read_calibration(write(tmp_path, BANDWIDTH)).identity
    assert one != read_calibration(write(tmp_path, BANDWIDTH + "# another\n")).identity
    assert len(one) == 12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a calibration (expected parameters, range, residuals, provenance)"),
        ("[1, 2]", "not a calibration (expected parameters, range, residuals, provenance)"),
        ("a: [", "not YAML: while parsing"),
        (b"\xff\xfe\x00", "not YAML: "),
        ("[" * 100_000, "not YAML: "),
        (BANDWIDTH + "provenance: {date: 2026-13-45}\n", "not YAML: month must be in 1..12"),
        ("parameters: {effective_bandwidth_bytes_per_second: " + "9" * 5000 + "}", "not YAML: "),
        (
            BANDWIDTH + "range: {max_sequences: " + "9" * 400 + "}\n",
            "range.max_sequences is not a number of at least 0",
        ),
        ("parameters: 5", "parameters is not a mapping"),
        ("parameters: {}", "parameters.effective_bandwidth_bytes_per_second is missing or 0"),
        (
            "parameters: {effective_bandwidth_bytes_per_second: 0}",
            "parameters.effective_bandwidth_bytes_per_second is missing or 0",
        ),
        (
            "parameters: {effective_bandwidth_bytes_per_second: fast}",
            "parameters.effective_bandwidth_bytes_per_second is not a number of at least 0: 'fast'",
        ),
        (
            "parameters: {effective_bandwidth_bytes_per_second: true}",
            "parameters.effective_bandwidth_bytes_per_second is not a number of at least 0: True",
        ),
        (
            "parameters: {effective_bandwidth_bytes_per_second: .nan}",
            "parameters.effective_bandwidth_bytes_per_second is not a number of at least 0: nan",
        ),
        (
            "parameters: {effective_bandwidth_bytes_per_second: 1.0e+12, step_overhead_seconds: -1}",
            "parameters.step_overhead_seconds is not a number of at least 0: -1",
        ),
        ("parameters: {bandwidth: 1}", "unknown key parameters.bandwidth (known: effective_bandwidth"),
        (BANDWIDTH + "rnage: {}\n", "unknown key 'rnage' (known: parameters, range, residuals, provenance)"),
        (BANDWIDTH + "range: {max_sequences: many}\n", "range.max_sequences is not a number of at least 0: 'many'"),
        (BANDWIDTH + "residuals: {samples: .inf}\n", "residuals.samples is not a number of at least 0: inf"),
        (BANDWIDTH + "provenance: {gpu_count: two}\n", "provenance.gpu_count is not a number of at least 0: 'two'"),
    ],
)
def test_each_fault_is_one_line_with_the_file_and_the_key(tmp_path: Path, text: str | bytes, says: str) -> None:
    """Never a traceback, never a default in silence."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_calibration(path)
    assert str(error.value).startswith(f"calibration file {path}: {says}")
    assert "\n" not in str(error.value)


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    """With the system's own words."""
    with pytest.raises(ConfigError, match=r"calibration file .*/none.yaml: No such file or directory"):
        read_calibration(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"calibration file .*: Is a directory"):
        read_calibration(tmp_path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    """It is read no further than a megabyte."""
    with pytest.raises(ConfigError, match="not a calibration"):
        read_calibration(write(tmp_path, BANDWIDTH + "#" * 2**21))


def test_a_bomb_of_aliases_does_not_hurt(tmp_path: Path) -> None:
    """Aliases that would make billions of elements are refused in no time."""
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    with pytest.raises(ConfigError, match="unknown key"):
        read_calibration(write(tmp_path, f"l0: &l0 [a]\n{levels}\n"))


EVERYTHING = Calibration(
    effective_bandwidth_bytes_per_second=2.0123456789e12,
    step_overhead_seconds=1.5e-3,
    sequence_cost_seconds=2e-5,
    prefill_cost_seconds_per_token=3e-5,
    kv_bandwidth_bytes_per_second=1.7e12,
    kv_context_cost_seconds_per_byte_token=3.5e-19,
    batch_growth_seconds=1e-4,
    wide_batch_seconds=1e-3,
    prefill_growth_seconds_per_token=2e-6,
    prompt_cost_seconds=4e-3,
    prompt_growth_seconds=5e-4,
    compute_flops_per_second=5.5e14,
    valid_range=LoadRange(32.0, 306_000.0, 241.5),
    residual_ratio=0.017,
    noise_ratio=0.006,
    samples=13,
    model="Qwen/Qwen3-8B",
    gpu="H100-SXM",
    gpu_count=2,
    engine_version="0.32.0",
    dtype="bfloat16",
    kv_dtype="fp8_e4m3",
    date="2026-01-31",
    stepscope_version="0.1.0",
)


def test_what_is_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Every field; only the identity is the file's own."""
    path = tmp_path / "calibration.yaml"
    write_calibration(path, EVERYTHING)
    found = read_calibration(path)
    assert replace(found, identity=EVERYTHING.identity) == EVERYTHING
    assert {field.name for field in fields(Calibration)} == {field.name for field in fields(found)}
    # No field was left at its default above, so none can have been forgotten in the table of keys.
    assert all(
        getattr(EVERYTHING, field.name) != field.default for field in fields(Calibration) if field.name != "identity"
    )


@given(
    st.floats(1.0, 1e15),
    st.one_of(st.none(), st.floats(1.0, 1e15)),
    st.floats(0.0, 1.0),
    st.one_of(st.none(), st.text("abc:#-'\"\n é{}[],", max_size=12)),
)
def test_any_numbers_and_names_survive(bandwidth: float, kv: float | None, cost: float, name: str | None) -> None:
    """Also names that YAML would take for something else."""
    given_ = Calibration(bandwidth, cost, kv_bandwidth_bytes_per_second=kv, model=name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        write_calibration(path, given_)
        assert replace(read_calibration(path), identity=given_.identity) == given_


def test_what_is_unknown_is_not_written(tmp_path: Path) -> None:
    """No empty sections, no null."""
    path = tmp_path / "calibration.yaml"
    write_calibration(path, Calibration(2e12))
    text = path.read_text()
    assert "null" not in text
    assert [section for section in ("range", "residuals", "provenance") if section in text] == []
    assert text.startswith("# The step law of one engine")


def test_writing_replaces_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    """A folder that is not there is one line; nothing else is left behind; others may read the file."""
    path = tmp_path / "calibration.yaml"
    path.write_text("old")
    write_calibration(path, EVERYTHING)
    assert [found.name for found in tmp_path.iterdir()] == ["calibration.yaml"]
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(ConfigError, match=r"calibration file .*/none/c\.yaml: No such file or directory"):
        write_calibration(tmp_path / "none" / "c.yaml", EVERYTHING)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"calibration file .*/folder: "):
        write_calibration(tmp_path / "folder", EVERYTHING)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["calibration.yaml", "folder"]
