"""`stepscope bench` is told one model and meets another."""

from __future__ import annotations

import json
from pathlib import Path

from chat_server import Manner, chat_server
from load_commands import BANDWIDTH, quick_engine, stepscope


def test_another_model_than_the_one_served_is_said_and_stays_out_of_the_rows(tmp_path: Path) -> None:
    """No prediction with its bytes, no fact of it for fit; the right one passes without a word."""
    points = tmp_path / "rows.jsonl"
    for model, is_other in (("meta-llama/Llama-3.1-8B-Instruct", True), ("Qwen/Qwen3-8B", False)):
        with quick_engine() as server:
            status, _, err = stepscope(
                "bench", f"--engine.url={server.url}", "--concurrency=1", "--output-tokens=30",
                f"--calibration.effective-bandwidth-bytes-per-second={BANDWIDTH:g}", f"--points-output={points}",
                f"--model.id={model}",
            )  # fmt: skip
        assert status == 0, err
        (row,) = map(json.loads, points.read_text().splitlines())
        assert row["served_model"] == "Qwen/Qwen3-8B"
        if is_other:
            assert f"--model.id: {model}, but the engine serves Qwen/Qwen3-8B: no prediction" in err
            assert not {"model", "weight_bytes_per_gpu", "kv_bytes_per_token_per_gpu", "layers"} & set(row)
            assert (row["predicted_itl_seconds"], row["law_source"]) == (None, None)
        else:
            assert "--model.id" not in err
            assert row["weight_bytes_per_gpu"] > 1e10


def test_a_nickname_says_nothing_of_the_model() -> None:
    """It is said, and what was given stands."""
    with chat_server(Manner(takes_extras=True, page="up 1\n")) as url:
        status, out, err = stepscope(
            "bench", f"--engine.url={url}", "--concurrency=1", "--model.id=Qwen/Qwen3-8B", "--json"
        )
    assert status == 0, err
    assert "but the engine serves some-model: nothing says whether these are the same" in err
    assert json.loads(out)["rows"][0]["weight_bytes_per_gpu"] > 1e10
