"""Capacity, tokens and bytes in flight, and the load of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_engine import CAPACITY_TOKENS, FakeEngine
from model_configs import load_config
from stepscope.core.estimate import Facts, capacity, kv_state, load_of, load_of_pair, pool_bytes
from stepscope.core.model_spec import from_hf_config
from stepscope.core.sample import EngineSample
from stepscope.core.window import Pair

BASE = EngineSample("m", "0")
# Two sliding layers per full one, three groups in one pool; per block of 16 tokens its bytes follow from the shape.
HYBRID = from_hf_config(load_config("gemma3-tape.json"), name="hybrid")


def test_the_capacity_is_the_operator_s_then_the_label_s_then_blocks() -> None:
    """The first that is known, with its name."""
    sample = replace(BASE, capacity_label_tokens=1000.0, num_blocks=10.0, block_size=16.0)
    assert capacity(sample, Facts(capacity_override_tokens=500.0)) == (500.0, "override")
    assert capacity(sample, Facts()) == (1000.0, "label")
    assert capacity(replace(sample, capacity_label_tokens=None), Facts()) == (160.0, "blocks")
    assert capacity(replace(BASE, num_blocks=10.0), Facts()) == (None, None)
    assert capacity(BASE, Facts()) == (None, None)


def test_tokens_in_flight_are_usage_times_capacity() -> None:
    """Unknown where either is; zero usage is zero tokens, not unknown."""
    sample = replace(BASE, capacity_label_tokens=1000.0, kv_usage=0.25)
    assert kv_state(sample, Facts()).tokens_in_flight == 250.0
    assert kv_state(replace(sample, kv_usage=0.0), Facts()).tokens_in_flight == 0.0
    assert kv_state(replace(sample, kv_usage=None), Facts()).tokens_in_flight is None
    assert kv_state(replace(sample, capacity_label_tokens=None), Facts()).tokens_in_flight is None


def test_a_hybrid_model_is_counted_in_bytes_of_its_pool() -> None:
    """Usage x blocks x bytes a block; the page's attention block wins over the smallest group's."""
    assert HYBRID.hybrid
    sample = replace(BASE, num_blocks=100.0, block_size=4.0, attention_block_size=16.0, kv_usage=0.5)
    block = HYBRID.block_bytes(16)
    assert block is not None
    facts = Facts(model=HYBRID)
    assert pool_bytes(sample, facts) == 100 * block
    kv = kv_state(replace(sample, capacity_label_tokens=1000.0), facts)
    assert kv.kv_bytes == pytest.approx(50 * block)
    assert kv.bytes_per_token == pytest.approx(100 * block / 1000)
    assert kv_state(sample, replace(facts, capacity_override_tokens=None)).kv_bytes == pytest.approx(50 * block)


def test_pool_bytes_fall_back_to_the_operator_and_the_label() -> None:
    """The operator's number wins; the page's label is per GPU."""
    sample = replace(BASE, pool_bytes_label=2e9)
    facts = Facts(model=HYBRID, gpu_count=2)
    assert pool_bytes(sample, replace(facts, pool_bytes_override=7e9)) == 7e9
    assert pool_bytes(sample, facts) == 4e9
    assert pool_bytes(BASE, facts) is None


def test_a_uniform_model_is_not_counted_in_pool_bytes() -> None:
    """Its bytes follow from tokens; the pool's spare blocks would only blur them."""
    spec = from_hf_config(load_config("qwen3-8b.json"), name="uniform")
    kv = kv_state(replace(BASE, num_blocks=100.0, block_size=16.0, kv_usage=0.5), Facts(model=spec))
    assert (kv.kv_bytes, kv.bytes_per_token, kv.tokens_in_flight) == (None, None, 800.0)


def test_a_load_needs_tokens_or_bytes() -> None:
    """One of them is enough."""
    known = kv_state(replace(BASE, capacity_label_tokens=1000.0, kv_usage=0.25), Facts())
    assert load_of(known, 4.0) is not None
    assert load_of(kv_state(BASE, Facts()), 4.0) is None
    only_bytes = kv_state(replace(BASE, pool_bytes_label=1e9, kv_usage=0.5), Facts(model=HYBRID))
    load = load_of(only_bytes, 4.0)
    assert load is not None
    assert load.kv_bytes == 5e8


def observed_pair(engine: FakeEngine) -> Pair:
    first = engine.sample()
    engine.decode(5.0, batch=8, itl=0.05, tokens=20_000)
    return Pair(first, engine.sample(), 0.0, 5.0, 800.0, 40.0, 100.0, 8.0, 500.0, True, 0.0, 4.0)


def test_a_pair_s_load_is_its_batch_and_prefill_with_the_later_tokens() -> None:
    """Prompt tokens are per step; drafted positions come along."""
    engine = FakeEngine()
    load = load_of_pair(observed_pair(engine), kv_state(engine.sample(), Facts()), Facts())
    assert load is not None
    assert load.tokens_in_flight == pytest.approx(0.2 * CAPACITY_TOKENS)
    assert (load.sequences, load.prefill_tokens_per_step, load.positions_per_sequence) == (8.0, 5.0, 4.0)
    assert load.read_bytes is None


def test_the_engine_s_count_of_read_bytes_is_used_when_it_moves() -> None:
    """Per GPU and step, times the GPUs; standing still it says nothing."""
    engine = FakeEngine()
    pair = observed_pair(engine)
    moved = replace(pair, last=replace(pair.last, read_bytes=3e11))
    load = load_of_pair(moved, kv_state(engine.sample(), Facts()), Facts(gpu_count=2))
    assert load is not None
    assert load.read_bytes == pytest.approx(2 * 3e9)


def test_a_pair_without_a_batch_has_no_load() -> None:
    """Nothing decoded, or nobody can say how many."""
    engine = FakeEngine()
    pair = replace(observed_pair(engine), sequences=None)
    assert load_of_pair(pair, kv_state(engine.sample(), Facts()), Facts()) is None
    assert load_of_pair(observed_pair(engine), kv_state(BASE, Facts()), Facts()) is None
