"""Llama 2 and 3, SmolLM2, Mistral: the plain decoder (Touvron et al. 2023; Jiang et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.models.gguf_config import config_from_gguf
from chairlift.models.huggingface_config import config_from_huggingface
from chairlift.models.model_config import Metadata, ModelConfig


def from_gguf(metadata: Mapping[str, Any]) -> ModelConfig:
    """GGUF stores the rows of q and k so that rotated pairs are neighbours."""
    return config_from_gguf(metadata, rope_interleaved=True)


def from_huggingface(config: Mapping[str, Any]) -> ModelConfig:
    """Mistral's layers slide; Llama's never do."""
    window = _mistral_window(config) if config.get("model_type") == "mistral" else None
    return config_from_huggingface(config, sliding_window=window)


def _mistral_window(config: Mapping[str, Any]) -> int | None:
    """Only an explicit null turns it off: a missing key means 4096."""
    if "sliding_window" in config and config["sliding_window"] is None:
        return None
    return Metadata(config).integer("sliding_window", 4096)
