"""Log lines of the server: for people, or one JSON object each.

What clients send may stand in a message; control characters in it are escaped, so that it cannot
forge a line or steer a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time

from chairlift.log import LOGGER_NAME
from chairlift.server.server_config import LogFormatName

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_OTHERS = ("uvicorn.error", "asyncio", "opentelemetry")
"""Loggers of others whose warnings belong to the server's log."""


def escape_controls(text: str) -> str:
    r"""Control and direction marks as \x1b, \u2028 and so on; everything else stays."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class TextFormatter(logging.Formatter):
    """Time, level, message; the lines of a traceback are marked as its own."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = f"{moment} {record.levelname} {escape_controls(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    | {escape_controls(part)}" for part in trace)
        return line


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        values = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)


class _StderrHandler(logging.Handler):
    """Writes to whatever standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def configure_server_log(format_name: LogFormatName, level: int = logging.INFO) -> None:
    """Send everything to standard error."""
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter() if format_name == "json" else TextFormatter())
    for name in (LOGGER_NAME, *_OTHERS):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level if name == LOGGER_NAME else logging.WARNING)
