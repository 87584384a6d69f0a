"""Writes the dashboards' JSON beside this file; with --check only says whether what is there is in step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from boards import engine, fleet  # noqa: E402  # after the path that finds them
from boards.frame import UIDS  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402

BOARDS = {"engine": engine, "fleet": fleet}


def documents() -> dict[str, dict[str, Any]]:
    """File name -> dashboard, as plain JSON."""
    made = {}
    for name, module in BOARDS.items():
        document: dict[str, Any] = json.loads(json.dumps(module.build().build(), cls=JSONEncoder))
        for at, panel in enumerate(document["panels"], start=1):
            panel["id"] = at  # rows get none from the builder
        for annotation in document["annotations"]["list"]:
            # The SDK has no fields for how an annotation of Prometheus is worded.
            annotation |= {
                "titleFormat": "{{alertname}}",
                "textFormat": "{{pod}} {{model_name}}",
                "tagKeys": "severity",
            }
        made[f"{UIDS[name]}.json"] = document
    return made


def text_of(document: dict[str, Any]) -> str:
    """The text of a file."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """0, or 1 if --check finds a file out of step."""
    stale = []
    for name, document in documents().items():
        path, text = HERE / name, text_of(document)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"grafana: out of step with the code: {', '.join(stale)} (run make dashboards)\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
