"""What config.json files of all families say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.errors import ModelFileError
from chairlift.models.model_config import Metadata, ModelConfig
from chairlift.models.rope import RopeScaling


def config_from_huggingface(
    config: Mapping[str, Any],
    *,
    sliding_window: int | None,
    first_sliding_layer: int = 0,
    qk_norm: bool = False,
) -> ModelConfig:
    """Read a decoder's config.json.  Rotated pairs are always halves in these files."""
    keys = Metadata(config)
    activation = keys.text("hidden_act", "silu")
    if activation != "silu":
        raise ModelFileError(f"activation {activation!r:.80} is not supported, only silu")
    hidden_size = keys.integer("hidden_size")
    num_heads = keys.integer("num_attention_heads")
    head_dim = keys.integer("head_dim", hidden_size // max(1, num_heads))
    rope = _rope_parameters(config)
    max_position = keys.integer("max_position_embeddings")
    scaling, max_position = _rope_scaling(rope, max_position)
    return ModelConfig(
        architecture=keys.text("model_type"),
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=keys.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=Metadata(rope).number("rope_theta", keys.number("rope_theta", 10000.0)),
        rope_dim=int(head_dim * Metadata(rope).number("partial_rotary_factor", 1.0)),
        rope_interleaved=False,
        rope_scaling=scaling,
        sliding_window=sliding_window,
        first_sliding_layer=first_sliding_layer,
        qk_norm=qk_norm,
        tied_head=keys.flag("tie_word_embeddings") if keys.has("tie_word_embeddings") else None,
    )


def _rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`rope_scaling`, or the newer `rope_parameters`; a trained length beside them wins."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ModelFileError(f"rope_scaling should be an object, it is {rope!r:.80}")
    outside = config.get("original_max_position_embeddings")
    return rope if outside is None else {**rope, "original_max_position_embeddings": outside}


def _rope_scaling(rope: Mapping[str, Any], max_position: int) -> tuple[RopeScaling | None, int]:
    keys = Metadata(rope)
    kind = keys.text("rope_type", keys.text("type", "default"))
    if kind == "default":
        return None, max_position
    if kind == "linear":
        return RopeScaling(kind="linear", factor=keys.number("factor")), max_position
    original = keys.integer("original_max_position_embeddings", max_position)
    if kind == "dynamic":
        # Frequencies change only past the trained length, so up to there nothing is scaled; and
        # changing those of tokens already stored would break paging.
        return None, original
    if kind == "llama3":
        return (
            RopeScaling(
                kind="llama3",
                factor=keys.number("factor"),
                original_max_position=original,
                low_freq_factor=keys.number("low_freq_factor"),
                high_freq_factor=keys.number("high_freq_factor"),
            ),
            max_position,
        )
    if kind == "yarn":
        if keys.has("mscale") or keys.has("mscale_all_dim"):
            raise ModelFileError("yarn scaling with mscale is not supported")
        return (
            RopeScaling(
                kind="yarn",
                factor=keys.number("factor"),
                original_max_position=original,
                beta_fast=keys.number("beta_fast", 32.0),
                beta_slow=keys.number("beta_slow", 1.0),
                attention_factor=(
                    keys.number("attention_factor") if keys.has("attention_factor") else None
                ),
                truncate=keys.flag("truncate", True),
            ),
            max_position,
        )
    raise ModelFileError(f"rope scaling of type {kind!r:.80} is not supported")
