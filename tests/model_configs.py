"""Model configurations for tests: the files in data/configs, and ones rebuilt from published dimensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parent / "data" / "configs"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL: dict[str, Any] = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def load_config(name: str) -> dict[str, Any]:
    """One of the configurations in data/configs."""
    config: dict[str, Any] = json.loads((CONFIGS / name).read_text())
    return config


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A configuration with keys left out."""
    return {key: value for key, value in config.items() if key not in keys}


def config_from_facts(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """A configuration in the spelling of the model's family from published dimensions."""
    config: dict[str, Any] = {
        "num_hidden_layers": facts["layers"],
        "hidden_size": facts["hidden"],
        "num_attention_heads": facts["heads"],
        "num_key_value_heads": facts["kv_heads"],
        "head_dim": facts["head_dim"],
        "vocab_size": facts["vocab"],
        "tie_word_embeddings": facts["tied_embeddings"],
        "torch_dtype": "bfloat16",
        "model_type": "llama",
    }
    if facts["type"] == "dense":
        config["intermediate_size"] = facts["ffn"]
        if not facts["gated_mlp"]:
            config["model_type"] = "gpt_neox"
        return config
    config |= {
        "num_experts_per_tok": facts["top_k"],
        "moe_intermediate_size": facts["moe_ffn"],
        "intermediate_size": facts["dense_ffn"] or facts["moe_ffn"],
    }
    if name.startswith("llama-4"):
        step = facts["layers"] // facts["moe_layers"]
        return config | {
            "model_type": "llama4_text",
            "num_local_experts": facts["experts"],
            "intermediate_size": facts["moe_ffn"],
            "intermediate_size_mlp": facts["dense_ffn"] or facts["moe_ffn"],
            "interleave_moe_layer_step": step,
        }
    if "mla" in facts:
        config |= {"model_type": "deepseek_v3", **facts["mla"], **facts.get("dsa", {})}
        config |= {"n_routed_experts": facts["experts"], "n_shared_experts": facts["shared_ffn"] // facts["moe_ffn"]}
        return config | {"first_k_dense_replace": facts["dense_layers"]}
    config["num_experts"] = facts["experts"]
    if facts["shared_ffn"]:
        config["shared_expert_intermediate_size"] = facts["shared_ffn"]
    if "sliding_window" in facts:
        config |= {"model_type": "gpt_oss", "sliding_window": facts["sliding_window"]}
    if "linear_attn" in facts:
        linear = facts["linear_attn"]
        config |= {
            "model_type": "qwen3_5_moe_text",
            "full_attention_interval": 4,
            "linear_num_key_heads": linear["key_heads"],
            "linear_num_value_heads": linear["value_heads"],
            "linear_key_head_dim": linear["head_dim"],
            "linear_value_head_dim": linear["head_dim"],
        }
    return config
