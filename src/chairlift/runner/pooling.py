"""From the hidden states of a prompt to one vector, chunk by chunk.

A mean is added up in float64, token after token, so that neither chunks nor company change a bit of
it.  Knows no request ids and no scheduling.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.interface import FloatArray
from chairlift.pooling_params import DEFAULT_POOLING, PoolingParams


class RequestPoolingState:
    """One request's vector so far.  It survives preemption: no token is added twice."""

    __slots__ = ("_is_mean", "_normalizes", "_num_prompt_tokens", "_num_read_tokens", "_total")

    def __init__(self, params: PoolingParams, num_prompt_tokens: int, hidden_size: int) -> None:
        self._is_mean: Final = (params.pooling_type or DEFAULT_POOLING) == "mean"
        self._normalizes: Final = params.normalize
        self._num_prompt_tokens: Final = num_prompt_tokens
        self._num_read_tokens = 0
        self._total: NDArray[np.float64] = np.zeros(hidden_size)

    def num_rows(self, start: int, end: int) -> int:
        """How many hidden states it reads of the tokens [start, end): so many of the last ones."""
        if self._is_mean:
            return max(0, end - max(start, self._num_read_tokens))
        return int(end == self._num_prompt_tokens)

    def push(self, rows: FloatArray, end: int) -> array[float] | None:
        """Read the hidden states [`num_rows`, H] of the tokens before `end`.

        The vector, in float32, once the prompt's last token has been read.  Raises
        FloatingPointError if it holds something that is no number.
        """
        for row in rows:
            np.add(self._total, row, out=self._total)  # one by one: the order is part of the result
        self._num_read_tokens += len(rows)
        if end < self._num_prompt_tokens:
            return None
        assert self._num_read_tokens == (self._num_prompt_tokens if self._is_mean else 1)
        if not np.isfinite(self._total).all():
            raise FloatingPointError(
                "the model gave no usable hidden states for this request: they are infinite or"
                " not numbers"
            )
        values = array("f")
        values.frombytes(self._scaled().astype(np.float32).tobytes())
        return values

    def _scaled(self) -> NDArray[np.float64]:
        vector = self._total / self._num_read_tokens
        if not self._normalizes:
            return vector
        length = float(np.sqrt(np.square(vector).sum()))
        return vector / length if length else vector
