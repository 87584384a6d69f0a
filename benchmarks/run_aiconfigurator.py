"""Asks aiconfigurator for the ITL of every measured load it can model; writes benchmarks/aiconfigurator.json.

Run by hand, in an environment of its own (it needs numpy, pandas and 114 MB of kernel timings; nothing here does):

    python3 -m venv /tmp/aiconfigurator
    /tmp/aiconfigurator/bin/pip install aiconfigurator-core==0.12.0
    STEPSCOPE_SHARED=../shared /tmp/aiconfigurator/bin/python benchmarks/run_aiconfigurator.py

A minute, without network: models and timings are inside the package. The measured ITL is never read.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
TABLE = REPOSITORY / "benchmarks" / "aiconfigurator.json"
PACKAGE = "aiconfigurator-core"
FILES = [f"silicon_{kind}_{engine}" for kind in ("dense", "moe") for engine in ("vllm", "trtllm", "sglang")]
SWEEP = "dynamo_decode"
SYSTEMS = {"H100-SXM": "h100_sxm", "H200-SXM": "h200_sxm", "B200-SXM": "b200_sxm", "B300-SXM": "b300_sxm"}
# Names of the measurements: checkpoints whose configuration is inside the package. Llama 3.3 70B is 3.1 70B trained
# further: the same layers.
MODELS = {
    "qwen3-32b": "Qwen/Qwen3-32B",
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.3-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-FP8",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "kimi-k2.5": "moonshotai/Kimi-K2.5",
    "minimax-m2.5": "MiniMaxAI/MiniMax-M2.5",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B",
    "glm-5": "zai-org/GLM-5-FP8",
}
MOST_GPUS = 16  # as in accuracy_data.py: more under one name are several instances
LAYOUT = re.compile(r":tp(\d+)dp(\d+)pp(\d+)ep(\d+):")

Modes = tuple[str | None, str | None]  # formats of plain and of expert weights; None: as the checkpoint says


def weight_modes(row: dict[str, Any]) -> list[Modes]:
    """The formats to try for a series, the likeliest first.

    After `gemm_quant_mode` and `moe_quant_mode` of the package's silicon_sample.csv. Where that cannot be (gpt-oss
    as nvfp4), after sdk/common.py: w4a8_mxfp4_mxfp8 is "recommended for Blackwell".
    """
    weights, sglang = row["weight_dtype"], row["engine"] == "sglang"
    as_published: Modes = (None, None)
    if weights == "fp4":
        return [("nvfp4", "nvfp4" if row["type"] == "moe" else None)]
    if weights == "fp8" and row["type"] == "dense":
        return [("fp8_block", None), ("fp8", None)] if sglang else [("fp8", None), ("fp8_block", None)]
    if weights == "fp8":
        return [("fp8", "fp8_block" if sglang else "fp8"), as_published]
    if weights == "mxfp4-experts" and row["gpu"].startswith("B"):
        return [(None, "w4a8_mxfp4_mxfp8"), as_published]
    return [as_published]


def lengths(row: dict[str, Any]) -> tuple[int, int]:
    """Input and output tokens of a request as served: the shorter draws of InferenceX are in the tokens in flight."""
    nominal = row["sequences"] * (row["input_tokens"] + row["output_tokens"] / 2)
    share = row["tokens_in_flight"] / nominal
    return max(1, round(share * row["input_tokens"])), max(2, round(share * row["output_tokens"]))


def predictors(row: dict[str, Any]) -> Iterator[tuple[str, Callable[[dict[str, Any]], float]]]:
    """Ways to predict the loads of a series, the likeliest first: a description, and row to ITL in seconds."""
    from aiconfigurator_core.sdk.backends.factory import get_backend  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.config import RuntimeConfig  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.config_builders import build_model_config  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.models import get_model  # type: ignore[import-not-found]
    from aiconfigurator_core.sdk.perf_database import get_database_view  # type: ignore[import-not-found]

    engine, layout = row["engine"], LAYOUT.search(row["series"])
    tp, dp, pp, ep = (int(text) for text in layout.groups()) if layout else (row["tp"], 1, 1, 1)
    experts = (tp * dp // ep, ep) if row["type"] == "moe" else (None, None)
    cache = "fp8" if row["kv_dtype"] == "fp8" else "bfloat16"
    # The package's own default, SILICON: measured kernels only, nothing made up where none was measured.
    database = get_database_view(SYSTEMS[row["gpu"]], engine, "current")
    backend = get_backend(engine)
    for gemm, moe in weight_modes(row):
        # Attention: as the package would choose, or in 16 bits where it has measured no kernel of that choice.
        for attention in (None, "bfloat16"):

            def predict(load: dict[str, Any], modes: tuple[str | None, ...] = (gemm, moe, attention)) -> float:
                config = build_model_config(tp, pp, dp, *experts, modes[0], cache, modes[2], modes[1])
                model = get_model(MODELS[load["model"]], config, engine)
                sequences = round(load["sequences"])
                if load["input_tokens"] is None:  # decode only: one step at this context
                    context = max(1, round(load["tokens_in_flight"] / sequences))
                    runtime = RuntimeConfig(batch_size=sequences, isl=context, osl=2)
                    found = backend.run_static(model, database, runtime, "static_gen")
                else:
                    start, end = lengths(load)
                    runtime = RuntimeConfig(batch_size=sequences, isl=start, osl=end)
                    # One prompt per step is what `aiconfigurator cli estimate` takes for want of another figure.
                    found = backend.run_agg(model, database, runtime, ctx_tokens=start)
                return float(found.get_result_dict()["tpot"]) / 1e3

            yield f"{gemm or 'checkpoint'} / {moe or 'checkpoint'} / {attention or 'default'}", predict


def reason_of(error: Exception) -> str:
    """Why there is no prediction, in one short line without paths."""
    text = " ".join(str(error).split())
    return re.split(r" at /| \{", text)[0].strip()


def predict_series(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """`modes` and `points` ([sequences, tokens in flight, prefill tokens per step, seconds]), or `refused`: why."""
    if rows[0]["tp"] > MOST_GPUS:
        return {"refused": f"more than {MOST_GPUS} GPUs under one name: several instances"}
    missing = [what for what, known in (("model", MODELS), ("gpu", SYSTEMS)) if rows[0][what] not in known]
    if missing:
        return {"refused": f"not in the package: {', '.join(rows[0][what] for what in missing)}"}
    refused = ""
    for modes, predict in predictors(rows[0]):
        points = []
        try:
            for row in rows:
                load = [row["sequences"], row["tokens_in_flight"], row["prefill_tokens_per_step"]]
                points.append([*load, float(f"{predict(row):.5g}")])
        except Exception as error:  # whatever a foreign package raises means: no prediction this way
            refused = refused or reason_of(error)
            continue
        return {"modes": modes, "points": points}
    return {"refused": refused}


def text_of(release: str, series: dict[str, dict[str, Any]]) -> str:
    """The table as JSON, one line per series, so that a difference can be read."""
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in series.items()]
    head = f' "package": {json.dumps(PACKAGE)},\n "version": {json.dumps(release)},\n'
    return "{\n" + head + ' "series": {\n' + ",\n".join(lines) + "\n }\n}\n"


def main() -> int:
    """Writes the table."""
    logging.disable(logging.CRITICAL)
    measured = Path(os.environ.get("STEPSCOPE_SHARED", REPOSITORY.parent / "shared")) / "data" / "measured"
    grouped: dict[str, list[dict[str, Any]]] = {}
    for file in (*FILES, SWEEP):
        for line in (measured / f"{file}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            grouped.setdefault(row["series"], []).append({k: v for k, v in row.items() if k != "itl_seconds"})
    found = {name: predict_series(rows) for name, rows in grouped.items()}
    TABLE.write_text(text_of(version(PACKAGE), found), encoding="utf-8")
    points = sum(len(one.get("points", ())) for one in found.values())
    sys.stdout.write(f"{points} points of {sum('points' in one for one in found.values())} series in {TABLE}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
