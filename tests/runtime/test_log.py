"""Log lines: one each, in UTC, as text or JSON."""

from __future__ import annotations

import json
import subprocess
import sys


def logged(style: str, level: str, code: str) -> list[str]:
    """What a fresh process writes to standard error."""
    start = f"from stepscope.runtime.log import make_logger; log = make_logger({level!r}, {style!r});"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_text_lines_stay_one_line() -> None:
    """Line breaks in what others said are shown, not obeyed."""
    (line,) = logged("text", "info", r"log.info('a\nb %s', 'c\rd')")
    assert line.endswith(r"INFO a\nb c\rd")
    assert line[10] == "T"
    assert line.split(" ")[0].endswith("Z")


def test_json_lines_are_objects() -> None:
    """With the exception inside."""
    code = "log.warning('x %d', 5)\ntry: 1 / 0\nexcept ZeroDivisionError: log.exception('ours')\n"
    rows = [json.loads(line) for line in logged("json", "info", "\n" + code)]
    assert [(row["level"], row["message"]) for row in rows] == [("warning", "x 5"), ("error", "ours")]
    assert "ZeroDivisionError" in rows[1]["exception"]
    assert rows[0]["time"].endswith("Z")


def test_the_level_is_obeyed_and_libraries_keep_quiet() -> None:
    """Their warnings are shown, their chatter is not."""
    code = "import logging; log.info('i'); log.warning('w'); logging.getLogger('urllib3').info('chatter')"
    assert [line.split(" ", 1)[1] for line in logged("text", "warning", code)] == ["WARNING w"]
