"""Masks of a step's constrained requests, computed in a thread while the model runs.

llguidance and the kernels both work without the interpreter's lock, so the two share the step's
time.  A fault in one request's grammar becomes that request's error.  Knows no sampling.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from chairlift.grammar.parser_limits import GrammarError
from chairlift.grammar.token_matcher import MaskArray, TokenMatcher

logger = logging.getLogger("chairlift")

MAX_WAITS: Final = 30
"""Of a second each.  A mask takes a millisecond: what takes this long will not end, and its request
must.  Counted in parts, so that a machine that was stopped for a while gets its time."""


@dataclass(slots=True)
class PendingMasks:
    """Masks by request id, some of them still to come."""

    matchers: Mapping[str, TokenMatcher]
    masks: dict[str, MaskArray] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    is_done: threading.Event = field(default_factory=threading.Event)

    def compute(self) -> None:
        """In the thread."""
        for request_id, matcher in self.matchers.items():
            try:
                self.masks[request_id] = matcher.compute_mask()
            except GrammarError as error:
                self.errors[request_id] = f"structured_outputs: the grammar failed: {error}"
            except BaseException as error:  # a panic in Rust is no Exception
                logger.error("the grammar of one request failed", exc_info=error)
                self.errors[request_id] = (
                    f"structured_outputs: the grammar failed: {type(error).__name__}: {error}"
                )
        self.is_done.set()


Jobs = queue.SimpleQueue[Callable[[], None] | None]


class MaskThread:
    """One thread, started when the first constrained request rides; it ends with its owner."""

    def __init__(self) -> None:
        self._jobs: Jobs | None = None

    def start(self, matchers: Mapping[str, TokenMatcher]) -> PendingMasks:
        """Begin to compute the mask of every matcher's position."""
        pending = PendingMasks(matchers)
        if not matchers:
            pending.is_done.set()
            return pending
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            weakref.finalize(self, self._jobs.put, None)
            threading.Thread(
                target=_work, args=(self._jobs,), name="chairlift-masks", daemon=True
            ).start()
        self._jobs.put(pending.compute)
        return pending

    def join(self, pending: PendingMasks) -> tuple[dict[str, MaskArray], dict[str, str]]:
        """All masks that came, and why others did not.  A thread that hangs is left behind."""
        for _ in range(MAX_WAITS):
            if pending.is_done.wait(1.0):
                return pending.masks, pending.errors
        self._jobs = None
        masks, errors = dict(pending.masks), dict(pending.errors)
        for request_id in pending.matchers:
            if request_id not in masks:
                errors.setdefault(request_id, "structured_outputs: the grammar took too long")
        return masks, errors


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
