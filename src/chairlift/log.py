"""Log lines on standard error, for programs that have not set up logging of their own."""

from __future__ import annotations

import logging

LOGGER_NAME = "chairlift"


def configure_logging(level: int = logging.INFO) -> None:
    """Show the package's log lines, unless the program has handlers that already get them."""
    logger = logging.getLogger(LOGGER_NAME)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("chairlift: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
