"""How fast the queue has been moving: prompts and tokens that got on, in a window of time."""

from __future__ import annotations

import math
from collections import deque

RATE_WINDOW_S = 30.0
MAX_RETRY_AFTER_S = 60
_MAX_ENTRIES = 4096


class QueueRate:
    """Amortised O(1) each."""

    def __init__(self) -> None:
        self._departures: deque[tuple[float, int]] = deque()
        """When prompts got on, and their tokens."""
        self._num_tokens = 0
        self._has_moved = False

    def departed(self, now: float, num_tokens: int) -> None:
        """A prompt has got on."""
        self._has_moved = True
        self._departures.append((now, num_tokens))
        self._num_tokens += num_tokens
        if len(self._departures) > _MAX_ENTRIES:
            self._drop_first()

    def retry_after_s(
        self, now: float, num_requests: int, num_tokens: int, *, share: float = 1.0
    ) -> int:
        """Whole seconds until half of these should be gone, at a share of the measured rate."""
        while self._departures and now - self._departures[0][0] > RATE_WINDOW_S:
            self._drop_first()
        if not self._departures:
            return MAX_RETRY_AFTER_S if self._has_moved else 1
        span_s = max(1.0, now - self._departures[0][0])
        by_requests = num_requests / len(self._departures)
        by_tokens = num_tokens / max(1, self._num_tokens)
        half_life_s = span_s * max(by_requests, by_tokens) / 2 / share
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(half_life_s)))

    def _drop_first(self) -> None:
        self._num_tokens -= self._departures.popleft()[1]
