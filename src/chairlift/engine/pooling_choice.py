"""How prompts become vectors where a request does not say: as asked for, as the model's file says,
or as decoders do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from chairlift.pooling_params import DEFAULT_POOLING, PoolingType

_GGUF_NUMBERS: dict[object, PoolingType] = {1: "mean", 3: "last"}
"""As GGUF files number them in `<architecture>.pooling_type`; 0 is none of its own."""
_FOLDER_KEYS: dict[str, PoolingType] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_FOLDER_NAMES: dict[object, PoolingType] = {"mean": "mean", "lasttoken": "last"}
"""Of `pooling_mode` in 1_Pooling/config.json of a Sentence Transformers folder."""


class PoolingChoice(NamedTuple):
    """What was decided, with a line for a person."""

    pooling_type: PoolingType
    reason: str


def choose_pooling(
    asked: PoolingType | None, kind: str, metadata: Mapping[str, Any]
) -> PoolingChoice:
    """`kind` and `metadata` are those of the checkpoint."""
    if asked is not None:
        return _choice(asked, "pooling_type")
    told = _of_gguf(metadata) if kind == "gguf" else _of_folder(metadata)
    if told is None:
        return _choice(DEFAULT_POOLING, "default of decoders")
    found, name = told
    if found is None:
        return _choice(DEFAULT_POOLING, f"the model's own, {name}, is not supported")
    return _choice(found, "the model's own")


def _choice(pooling_type: PoolingType, why: str) -> PoolingChoice:
    return PoolingChoice(pooling_type, f"embeddings by {pooling_type} pooling ({why})")


def _of_gguf(metadata: Mapping[str, Any]) -> tuple[PoolingType | None, str] | None:
    number = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if not number:
        return None
    return _GGUF_NUMBERS.get(number), f"number {number}"


def _of_folder(metadata: Mapping[str, Any]) -> tuple[PoolingType | None, str] | None:
    """One way only: several would make a longer vector."""
    pooling = metadata.get("pooling", {})
    name = pooling.get("pooling_mode")
    if isinstance(name, str):
        return _FOLDER_NAMES.get(name), name
    names = [key for key, value in pooling.items() if "pooling_mode" in key and value is True]
    if not names:
        return None
    return _FOLDER_KEYS.get(names[0]) if len(names) == 1 else None, " and ".join(names)
