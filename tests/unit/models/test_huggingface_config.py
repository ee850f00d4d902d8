"""A model's numbers from config.json, of each family; and files that lie."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.errors import ModelFileError
from chairlift.models.model_config import ModelConfig
from chairlift.models.registry import read_model_config
from chairlift.models.rope import RopeScaling

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}


def read(**changes: Any) -> ModelConfig:
    return read_model_config("huggingface", {"config": {**CONFIG, **changes}})


def test_llama() -> None:
    assert read() == ModelConfig(
        architecture="llama",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=256,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        rope_dim=16,
        rope_interleaved=False,
        tied_head=False,
    )


def test_optional_keys() -> None:
    config = read(
        head_dim=32,
        num_key_value_heads=None,
        rms_norm_eps=None,
        rope_theta=None,
        tie_word_embeddings=None,
        partial_rotary_factor=None,
        rope_parameters={"rope_type": "default", "rope_theta": 7e5, "partial_rotary_factor": 0.5},
    )
    assert (config.head_dim, config.rope_dim) == (32, 16)
    assert config.num_kv_heads == 4
    assert config.rms_norm_eps == 1e-6
    assert config.rope_theta == 7e5
    assert config.tied_head is None


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ],
)
def test_a_missing_key_is_named(family: str, key: str) -> None:
    with pytest.raises(ModelFileError, match=f"the model file lacks {key}$"):
        read(model_type=family, **{key: None})


@pytest.mark.parametrize(
    ("family", "changes", "window", "first_layer"),
    [
        ("llama", {"sliding_window": 24}, None, 0),
        ("mistral", {"sliding_window": 24}, 24, 0),
        ("mistral", {}, 4096, 0),
        ("mistral", {"sliding_window": None}, None, 0),
        ("qwen2", {"sliding_window": 24, "max_window_layers": 1}, None, 0),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 24}, None, 0),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
            24,
            1,
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2},
            24,
            2,
        ),
        ("qwen3", {"use_sliding_window": True}, 4096, 28),
    ],
)
def test_sliding_windows(
    family: str, changes: dict[str, Any], window: int | None, first_layer: int
) -> None:
    config = read(model_type=family, **changes)
    assert (config.sliding_window, config.first_sliding_layer) == (window, first_layer)


def test_qwen3_normalises_heads_of_128() -> None:
    config = read(model_type="qwen3")
    assert config.qk_norm and config.head_dim == 128
    assert not read(model_type="qwen2").qk_norm


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (None, None),
        ({}, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 2.5}, RopeScaling(kind="linear", factor=2.5)),
        (
            LLAMA3,
            RopeScaling(
                kind="llama3",
                factor=8.0,
                original_max_position=64,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
            ),
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            RopeScaling(kind="yarn", factor=4.0, original_max_position=64),
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4,
                "beta_fast": 16,
                "beta_slow": 2,
                "attention_factor": 1.25,
                "truncate": False,
            },
            RopeScaling(
                kind="yarn",
                factor=4.0,
                original_max_position=256,
                beta_fast=16.0,
                beta_slow=2.0,
                attention_factor=1.25,
                truncate=False,
            ),
        ),
    ],
)
def test_rope_scaling(key: str, rope: Any, expected: RopeScaling | None) -> None:
    assert read(**{key: rope}).rope_scaling == expected


def test_a_trained_length_beside_the_scaling_wins() -> None:
    scaling = read(rope_scaling=LLAMA3, original_max_position_embeddings=128).rope_scaling
    assert scaling is not None and scaling.original_max_position == 128


def test_dynamic_scaling_goes_as_far_as_nothing_is_scaled() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
    config = read(rope_scaling=rope)
    assert config.rope_scaling is None and config.max_position == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported, only silu"),
        ({"num_attention_heads": 0}, "num_heads"),
        ({"num_attention_heads": "4"}, "num_attention_heads should be an integer"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"num_key_value_heads": [2, 2, 1]}, "num_key_value_heads.*layers"),
        ({"hidden_size": 64.0}, "hidden_size should be an integer, it is 64.0"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"num_hidden_layers": 10**30}, "num_layers"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps should be a number"),
        ({"rope_theta": 10**400}, "rope_theta should be a number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false"),
        ({"rope_scaling": [1]}, r"rope_scaling should be an object, it is \[1\]"),
        ({"rope_scaling": {"type": "longrope"}}, "'longrope' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be above 0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "lacks low_freq_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale"),
        ({"rope_parameters": {"partial_rotary_factor": 1e300}}, "rope dimension"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding window"),
        ({"model_type": "mistral", "sliding_window": "all"}, "sliding_window should be an integer"),
        ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window should be"),
    ],
)
def test_files_that_lie(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(**changes)


@pytest.mark.parametrize("kind", ["gguf", "huggingface"])
def test_an_unknown_architecture_names_the_known_ones(kind: Any) -> None:
    values = {"general.architecture": "mixtral", "config": {"model_type": "mixtral"}}
    message = "architecture 'mixtral' is not supported; supported are: llama, mistral, qwen2, qwen3"
    with pytest.raises(ModelFileError, match=message):
        read_model_config(kind, values)


def test_no_model_type() -> None:
    with pytest.raises(ModelFileError, match="lacks model_type"):
        read_model_config("huggingface", {"config": {}})
