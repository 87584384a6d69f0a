"""Configurations by name and number."""

from __future__ import annotations

import pytest

from stepscope.errors import ConfigError
from stepscope.sim.build import build_config, parse_speculative


def test_presets_and_explicit_numbers() -> None:
    """Explicit numbers win over the preset's."""
    llama = build_config("llama-3.1-70b", "H100-SXM", "realistic", tensor_parallel=4)
    assert llama.model_root == "meta-llama/Llama-3.1-70B"
    assert llama.capacity_tokens == pytest.approx((4 * 80e9 * 0.9 - 2 * 70.5524e9) / 327_680, rel=0.001)
    custom = build_config(weight_bytes=5.7e9, kv_bytes_per_token=32768, num_gpu_blocks=1000)
    assert custom.physics.weight_bytes == 5.7e9
    assert custom.physics.kv_bytes_per_token == 32768
    assert (custom.num_gpu_blocks, custom.max_model_len) == (1000, 999 * 16)


def test_gpus_without_nvlink_pay_for_their_collectives() -> None:
    """A chunk of prompt tokens over PCIe: 14 times the transfer."""
    nvlink, pcie = (build_config("qwen3-14b", gpu, tensor_parallel=2).physics for gpu in ("H100-SXM", "L4"))
    assert nvlink.link_bytes_per_second / pcie.link_bytes_per_second == pytest.approx(450 / 32)
    small = build_config("qwen3-0.6b", "H200-SXM")
    assert small.physics.weight_bytes == pytest.approx(2 * 0.596e9, rel=0.001)
    assert small.max_model_len == 40960


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "qwen3-8"}, "unknown model 'qwen3-8', did you mean qwen3-8b?"),
        ({"gpu": "H100"}, "unknown GPU 'H100', did you mean H100-SXM?"),
        ({"physics": "magic"}, "unknown physics 'magic'"),
        ({"model": "llama-3.1-70b"}, "does not fit on 1 x H100-SXM; give --tensor-parallel"),
        ({"tensor_parallel": 0}, "tensor_parallel must be at least 1"),
        ({"data_parallel": 0}, "data_parallel must be at least 1"),
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens (100) must hold one step"),
        ({"weight_bytes": -1.0, "num_gpu_blocks": 10}, "weight_bytes must be above 0"),
        ({"draft_tokens": 1, "draft_acceptance": 2.0}, "speculative K must be"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(arguments: dict[str, object], message: str) -> None:
    """The text names the setting."""
    with pytest.raises(ConfigError) as error:
        build_config(**arguments)  # type: ignore[arg-type]  # wrong on purpose
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_speculative_is_k_and_p() -> None:
    """Anything else names the flag."""
    assert parse_speculative("3:0.7") == (3, 0.7)
    for text in ("3", "x:1", "0:0.5", "3:1.5", "3:nan"):
        with pytest.raises(ConfigError, match="--speculative must be K:P"):
            parse_speculative(text)
