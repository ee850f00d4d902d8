"""Log lines on standard error, for programs that have not set up logging of their own."""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "chairlift"


class _StderrHandler(logging.Handler):
    """Writes to whatever standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(f"chairlift: {record.getMessage()}", file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def configure_logging(level: int = logging.INFO, *, force: bool = False) -> None:
    """Show the package's log lines.

    A program that has handlers of its own keeps them, unless `force` says that it is ours.
    """
    logger = logging.getLogger(LOGGER_NAME)
    if logger.hasHandlers() and not force:
        return
    logger.handlers = [_StderrHandler()]
    logger.setLevel(level)
    logger.propagate = False
