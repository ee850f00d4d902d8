"""Which family's file reads which checkpoint.  A new family is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from chairlift.errors import ModelFileError
from chairlift.models import llama, qwen2, qwen3
from chairlift.models.model_config import Metadata, ModelConfig


class Family(Protocol):
    """What each family's file offers."""

    def from_gguf(self, metadata: Mapping[str, Any]) -> ModelConfig: ...

    def from_huggingface(self, config: Mapping[str, Any]) -> ModelConfig: ...


FAMILIES: Mapping[str, Family] = {"llama": llama, "mistral": llama, "qwen2": qwen2, "qwen3": qwen3}


def read_model_config(
    kind: Literal["gguf", "huggingface"], metadata: Mapping[str, Any]
) -> ModelConfig:
    """`metadata` is a GGUF file's key-value data, or {"config": config.json, ...} of a folder.

    Raises `ModelFileError` for an architecture we do not know, or numbers that make no sense.
    """
    if kind == "gguf":
        family = _family(Metadata(metadata).text("general.architecture"))
        return family.from_gguf(metadata)
    config = metadata["config"]
    return _family(Metadata(config).text("model_type")).from_huggingface(config)


def _family(name: str) -> Family:
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelFileError(f"architecture {name!r:.80} is not supported; supported are: {known}")
    return FAMILIES[name]
