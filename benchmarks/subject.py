"""The settings under which everything is measured: a known model and GPU and an objective, so that all series exist.

A module of its own, so that a process whose memory is measured loads nothing else.
"""

from __future__ import annotations

from stepscope import settings as table
from stepscope.config import Settings

SETTINGS = Settings.of(
    (table.ENGINE_URL, "http://127.0.0.1:9"),  # the discard port: nobody answers, no fact comes from there
    (table.SAMPLE_INTERVAL, 1.0),  # five times the usual rate
    (table.SAMPLE_WINDOW, 30.0),
    (table.MODEL_ID, "Qwen/Qwen3-8B"),
    (table.HARDWARE_GPU, "H100-SXM"),
    (table.OBJECTIVE_TOKENS_PER_SECOND, 50.0),
)
# The same as flags of `stepscope serve`.
FLAGS = (
    "--sample.interval=1s",
    "--sample.window=30s",
    "--model.id=Qwen/Qwen3-8B",
    "--hardware.gpu=H100-SXM",
    "--objective.tokens-per-second=50",
)
