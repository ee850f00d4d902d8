"""Why a request has no good answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Counted by its cause."""

    cause: str
    """A word: http_429, timeout, cut_stream, ..."""
    message: str
