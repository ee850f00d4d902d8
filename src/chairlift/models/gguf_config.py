"""What GGUF files of all families say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chairlift.errors import ModelFileError
from chairlift.models.model_config import Metadata, ModelConfig
from chairlift.models.rope import RopeScaling, rope_magnitude


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
    head_dim = keys.integer("attention.key_length", hidden_size // max(1, num_heads))
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise ModelFileError("keys and values of different sizes are not supported")
    max_position = keys.integer("context_length")
    window = keys.integer("attention.sliding_window", 0)
    return ModelConfig(
        architecture=architecture,
        vocab_size=keys.integer("vocab_size", _num_tokens(metadata)),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        rope_dim=keys.integer("rope.dimension_count", head_dim),
        rope_interleaved=rope_interleaved,
        rope_scaling=_rope_scaling(keys, max_position),
        sliding_window=window or None,
        qk_norm=qk_norm,
    )


def _num_tokens(metadata: Mapping[str, Any]) -> int:
    """Size of the vocabulary in the file; 0 if it has none."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else 0


def _rope_scaling(keys: Metadata, max_position: int) -> RopeScaling | None:
    """As llama.cpp reads them: a factor without a type is linear, one of 0 or 1 is none."""
    kind = keys.text("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        plain = RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=keys.integer(
                "rope.scaling.original_context_length", max_position
            ),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        )
        # In these files the factor multiplies YaRN's own, in Hugging Face's it replaces that.
        attention_factor = keys.number("rope.scaling.attn_factor", 1.0) * rope_magnitude(plain)
        return replace(plain, attention_factor=attention_factor)
    raise ModelFileError(f"rope scaling of type {kind!r:.80} is not supported")
