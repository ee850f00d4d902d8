"""How one request wants its prompt turned into a vector: names and defaults as in vLLM.

A frozen value object that validates itself; it knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from chairlift.errors import RequestError

PoolingType = Literal["last", "mean"]

DEFAULT_POOLING: PoolingType = "last"
"""Of a decoder whose file says nothing: only its last token has seen the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Options of one embedding.  Raises `RequestError`, naming the field, on a bad value."""

    pooling_type: PoolingType | None = None
    """last: the hidden state of the last token; mean: of all tokens, averaged.  None: the model's
    own way."""
    normalize: bool = True
    """Scale the vector to length 1 (L2), so that a dot product is a cosine."""

    def __post_init__(self) -> None:
        if self.pooling_type is not None and self.pooling_type not in get_args(PoolingType):
            raise RequestError(
                f"pooling_type must be one of {', '.join(get_args(PoolingType))}, got"
                f" {self.pooling_type!r:.80}",
                field="pooling_type",
            )
        if not isinstance(self.normalize, bool):
            raise RequestError("normalize must be true or false", field="normalize")
