"""Recorded pages of a real engine that come with the tests (data/pages/README.md says where they are from)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "data" / "pages"


@cache
def whole_page() -> str:
    """One whole page of vLLM 0.32.0."""
    return gzip.decompress((FOLDER / "whole-page.txt.gz").read_bytes()).decode()


@cache
def agents_join() -> tuple[tuple[float, str], ...]:
    """(seconds, page) once a second: eight chats, then two long prompts join."""
    with gzip.open(FOLDER / "agents_join-cut.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple((row["t"], row["body"]) for row in rows)
