"""What GGUF files of all families say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.errors import ModelFileError
from chairlift.models.model_config import Metadata, ModelConfig
from chairlift.models.rope import RopeScaling


def config_from_gguf(
    metadata: Mapping[str, Any], *, rope_interleaved: bool, qk_norm: bool = False
) -> ModelConfig:
    """Read `<architecture>.*` keys (GGUF specification, "Standardized key-value pairs")."""
    architecture = Metadata(metadata).text("general.architecture")
    keys = Metadata(metadata, f"{architecture}.")
    if keys.integer("expert_count", 0):
        raise ModelFileError(f"{architecture} models with experts are not supported")
    hidden_size = keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    if num_heads < 1:
        raise ModelFileError(f"{architecture}.attention.head_count is {num_heads}")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise ModelFileError("keys and values of different sizes are not supported")
    window = keys.integer("attention.sliding_window", 0)
    return ModelConfig(
        architecture=architecture,
        vocab_size=keys.integer("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ()))),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        rope_dim=keys.integer("rope.dimension_count", head_dim),
        rope_interleaved=rope_interleaved,
        rope_scaling=_rope_scaling(keys),
        sliding_window=window or None,
        qk_norm=qk_norm,
    )


def _rope_scaling(keys: Metadata) -> RopeScaling | None:
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        attention_factor = (
            keys.number("rope.scaling.attn_factor") if keys.has("rope.scaling.attn_factor") else None
        )
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=keys.integer("rope.scaling.original_context_length"),
            attention_factor=attention_factor,
        )
    raise ModelFileError(f"rope scaling of type {kind!r} is not supported")
