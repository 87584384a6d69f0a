"""Log lines on standard error: text for people, JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
import time

_NAME = "stepscope"


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row)


class _TextFormatter(logging.Formatter):
    """One line; line breaks in what others said are shown, not obeyed."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = record.message.replace("\n", "\\n").replace("\r", "\\r")
        return super().formatMessage(record)


def make_logger(level: str, style: str) -> logging.Logger:
    """The logger of the process. level: debug, info, warning, error; style: text or json."""
    formatter: logging.Formatter
    if style == "json":
        formatter = _JsonFormatter()
    else:
        formatter = _TextFormatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime  # UTC, as the Z says
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # what libraries have to say
    log = logging.getLogger(_NAME)
    log.setLevel(level.upper())
    return log
