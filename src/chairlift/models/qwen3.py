"""Qwen 3, dense: no biases, RMSNorm on each head of q and k (Qwen Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.models.gguf_config import config_from_gguf
from chairlift.models.huggingface_config import config_from_huggingface
from chairlift.models.model_config import ModelConfig
from chairlift.models.qwen2 import sliding_layers


def from_gguf(metadata: Mapping[str, Any]) -> ModelConfig:
    return config_from_gguf(metadata, rope_interleaved=False, qk_norm=True)


def from_huggingface(config: Mapping[str, Any]) -> ModelConfig:
    window, first_layer = sliding_layers(config)
    return config_from_huggingface(
        {"head_dim": 128, **config},
        sliding_window=window,
        first_sliding_layer=first_layer,
        qk_norm=True,
    )
