"""What POST /v1/completions is asked and what it answers, in vLLM's words."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from stepscope.sim.presets import EngineConfig

DEFAULT_MAX_TOKENS = 16  # the OpenAI completions default, which vLLM keeps
CHARACTERS_PER_TOKEN = 4  # for prompts given as text; a usual rule of thumb for English


class BadRequestError(ValueError):
    """What the client did wrong, for a 4xx answer."""

    def __init__(self, message: str, code: int = 400) -> None:
        """`code`: HTTP status."""
        super().__init__(message)
        self.code = code

    def json(self) -> dict[str, object]:
        """The body of the answer."""
        kind = "NotFoundError" if self.code == 404 else "BadRequestError"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True)
class Ask:
    """The part of a completion request that the simulator obeys; every answer has all its `max_tokens`."""

    model: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    usage_chunk: bool
    identity: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")

    def chunk(self, tokens: int, *, last: bool, usage: dict[str, int] | None = None) -> dict[str, object]:
        """One answer, or one event of a streamed one, with `tokens` tokens of text."""
        reason = "length" if last else None
        choice = {"index": 0, "text": " x" * tokens, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return {
            "id": self.identity,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice] if tokens else [],
            "usage": usage,
        }

    def usage(self) -> dict[str, int]:
        """Token counts of the whole request."""
        total = self.prompt_tokens + self.max_tokens
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": self.max_tokens}


def parse_ask(body: dict[str, object], config: EngineConfig) -> Ask:
    """Read a request body. BadRequestError says what is wrong with it."""
    if body.get("model", config.model_name) != config.model_name:
        raise BadRequestError(f"The model `{body['model']}` does not exist.", 404)
    prompt, max_tokens = body.get("prompt"), body.get("max_tokens", DEFAULT_MAX_TOKENS)
    if isinstance(prompt, str):
        prompt_tokens = -(-len(prompt) // CHARACTERS_PER_TOKEN)
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        prompt_tokens = len(prompt)
    else:
        raise BadRequestError("prompt must be a string or a list of token ids")
    if prompt_tokens < 1:
        raise BadRequestError("prompt is empty")
    if type(max_tokens) is not int or max_tokens < 1:
        raise BadRequestError("max_tokens must be a whole number of at least 1")
    options = body.get("stream_options")
    usage_chunk = isinstance(options, dict) and bool(options.get("include_usage"))
    return Ask(config.model_name, prompt_tokens, max_tokens, bool(body.get("stream")), usage_chunk)
