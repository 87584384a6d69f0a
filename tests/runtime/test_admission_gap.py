"""What a sidecar says of tokens that the engine holds and no lease accounts for."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from admission_helpers import ask, leasing, simulated, text
from stepscope import settings as table
from waiting import eventually

SAID = "somebody does not ask, or declares too little"


def complete(engine_url: str, prompt_tokens: int, output_tokens: int) -> None:
    """One request straight to the engine."""
    body = json.dumps({"prompt": [5] * prompt_tokens, "max_tokens": output_tokens}).encode()
    request = urllib.request.Request(f"{engine_url}/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).read()


def test_a_gateway_that_declares_too_little_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """100 tokens on lease and 8,000 in the engine: the gap is taken from what is free, published, and in the log."""
    with simulated() as engine, leasing(engine.url, (table.ADMISSION_LONGEST_TTL, 3.0)) as base:
        assert eventually(lambda: ask(f"{base}/v1/budget", "GET").document["outside_tokens"] == 0.0)
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 100}).status == 201
        running = threading.Thread(target=complete, args=(engine.url, 8000, 400))
        running.start()
        try:
            assert eventually(lambda: any(SAID in line for line in caplog.messages))
            budget = ask(f"{base}/v1/budget", "GET").document
            assert 7_000 < budget["outside_tokens"] < 8_500
            assert budget["free_tokens"] < budget["budget_tokens"] - 7_000
            assert f"stepscope_admission_outside_tokens {int(budget['outside_tokens'] / 1000)}" in text(
                f"{base}/metrics"
            )
        finally:
            running.join(30.0)
        assert eventually(lambda: ask(f"{base}/v1/budget", "GET").document["outside_tokens"] == 0.0)
