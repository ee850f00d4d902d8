"""The numbers that describe a decoder-only transformer, whatever file they came from.

`ModelConfig` is what model code, memory planning and `chairlift info` read.  Each family's file in
this folder turns a checkpoint's metadata into one, with `Metadata` for checked look-ups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any

from chairlift.errors import ModelFileError
from chairlift.models.rope import RopeScaling

_MAX_SIZE = 2**24
"""No size in a real model is larger; a bigger one is a lie in the file."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position",
)
_LARGEST = float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one model.  Counts are per model, sizes in elements."""

    architecture: str
    """Name in the registry, e.g. "llama"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Longest context the model was made for, in tokens."""
    rms_norm_eps: float
    rope_theta: float
    rope_dim: int
    rope_interleaved: bool
    """True where rotated pairs are neighbours (llama GGUF), False where halves pair up."""
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    first_sliding_layer: int = 0
    """Layers before this one see the whole context."""
    qk_norm: bool = False
    """RMSNorm on each head of q and k, before rotation."""
    tied_head: bool | None = None
    """The output head is the embedding; None: if the file has no head of its own."""

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not 1 <= value <= _MAX_SIZE:
                raise ModelFileError(f"{name} in the model file is out of range: {value}")
        if self.num_heads % self.num_kv_heads:
            raise ModelFileError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads"
            )
        if not 2 <= self.rope_dim <= self.head_dim or self.rope_dim % 2:
            raise ModelFileError(
                f"a rope dimension of {self.rope_dim} does not fit heads of {self.head_dim}"
            )
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 1):
            raise ModelFileError(f"rope base in the model file is {self.rope_theta}")
        if not 0 < self.rms_norm_eps < 1:
            raise ModelFileError(f"RMSNorm epsilon in the model file is {self.rms_norm_eps}")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelFileError(f"sliding window in the model file is {self.sliding_window}")

    @property
    def num_parameters(self) -> int:
        """Weights that a token is multiplied by, from the first layer to the output head."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * heads + 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * layer + self.vocab_size * self.hidden_size


class Metadata:
    """Checked look-ups in a model file's key-value data; errors name the key."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite one."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number", value)
        if not -_LARGEST <= value <= _LARGEST:  # NaN fails this too
            raise self._wrong(key, "a number", value)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def has(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise ModelFileError(f"the model file lacks {self._prefix}{key}")
        return value

    def _wrong(self, key: str, kind: str, value: object) -> ModelFileError:
        if hasattr(value, "__len__") and not isinstance(value, str):
            found = "it holds several values, as of layers that differ, which is not supported"
        else:
            found = f"it is {value!r:.80}"
        return ModelFileError(f"{self._prefix}{key} should be {kind}, {found}")
