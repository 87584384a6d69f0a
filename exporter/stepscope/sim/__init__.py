"""A vLLM-shaped server with a step-time law of its own (it must never import stepscope.core)."""
