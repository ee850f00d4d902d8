"""Qwen 2 and 2.5, dense: the plain decoder with biases on q, k and v (Yang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.models.gguf_config import config_from_gguf
from chairlift.models.huggingface_config import config_from_huggingface
from chairlift.models.model_config import Metadata, ModelConfig


def from_gguf(metadata: Mapping[str, Any]) -> ModelConfig:
    return config_from_gguf(metadata, rope_interleaved=False)


def from_huggingface(config: Mapping[str, Any]) -> ModelConfig:
    """The window holds from layer `max_window_layers` on, if it is switched on at all."""
    window, first_layer = sliding_layers(config)
    return config_from_huggingface(config, sliding_window=window, first_sliding_layer=first_layer)


def sliding_layers(config: Mapping[str, Any]) -> tuple[int | None, int]:
    """A Qwen model's window, and the first layer that slides."""
    keys = Metadata(config)
    if not keys.flag("use_sliding_window", False):
        return None, 0
    return keys.integer("sliding_window", 4096), keys.integer("max_window_layers", 28)
