"""A model's numbers from GGUF metadata, of each family; and files that lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chairlift.errors import ModelFileError
from chairlift.models.model_config import ModelConfig
from chairlift.models.registry import read_model_config
from chairlift.models.rope import RopeScaling, rope_magnitude


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """A small file's keys; `changes` use __ for a dot, and None removes one."""
    keys: dict[str, Any] = {
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "context_length": 256,
        "rope.freq_base": 500_000.0,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    values = {f"{architecture}.{name}": value for name, value in keys.items() if value is not None}
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.tokens": ["x"] * 300,
        **values,
    }


def read(values: dict[str, Any]) -> ModelConfig:
    return read_model_config("gguf", values)


@pytest.mark.parametrize(
    ("architecture", "interleaved", "qk_norm"),
    [("llama", True, False), ("qwen2", False, False), ("qwen3", False, True)],
)
def test_each_family(architecture: str, interleaved: bool, qk_norm: bool) -> None:
    assert read(metadata(architecture)) == ModelConfig(
        architecture=architecture,
        vocab_size=300,
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
        rope_interleaved=interleaved,
        qk_norm=qk_norm,
    )


def test_optional_keys() -> None:
    config = read(
        metadata(
            attention__key_length=32,
            attention__value_length=32,
            rope__dimension_count=8,
            attention__sliding_window=128,
            vocab_size=280,
            attention__head_count_kv=None,
            rope__freq_base=None,
        )
    )
    assert (config.head_dim, config.rope_dim, config.sliding_window) == (32, 8, 128)
    assert config.vocab_size == 280
    assert config.num_kv_heads == 4, "no grouping"
    assert config.rope_theta == 10_000.0


def test_a_window_of_zero_is_none() -> None:
    assert read(metadata(attention__sliding_window=0)).sliding_window is None


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "context_length",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    values = metadata()
    del values[f"llama.{key}"]
    with pytest.raises(ModelFileError, match=f"the model file lacks llama.{key}$"):
        read(values)


def test_no_architecture() -> None:
    with pytest.raises(ModelFileError, match="lacks general.architecture"):
        read({})


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv"])
@pytest.mark.parametrize("heads", [np.array([4, 4, 2], np.int32), [4, 4, 2]])
def test_heads_that_differ_from_layer_to_layer(key: str, heads: Any) -> None:
    values = {**metadata(), f"llama.{key}": heads}
    with pytest.raises(ModelFileError, match=f"llama.{key} should be an integer.*layers") as caught:
        read(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "llama models with experts are not supported"),
        ({"attention__head_count": 0}, "num_heads in the model file is out of range: 0"),
        ({"attention__head_count": -4}, "num_heads"),
        ({"attention__head_count": 2**31}, "num_heads|head_dim"),
        ({"attention__head_count": 128}, "head_dim in the model file is out of range: 0"),
        ({"attention__head_count": "4"}, "should be an integer"),
        ({"attention__head_count_kv": 3}, "cannot share"),
        ({"block_count": 2**31}, "num_layers"),
        ({"context_length": 2**63}, "max_position"),
        ({"embedding_length": 2**32 - 1}, "hidden_size"),
        ({"attention__value_length": 8}, "keys and values of different sizes"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "should be a number"),
        ({"rope__freq_base": 0.0}, "rope base"),
        ({"rope__scaling__type": "longrope"}, "rope scaling of type 'longrope' is not supported"),
        ({"rope__scaling__type": 3}, "should be a text"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": -1.0}, "factor must be above 0"),
    ],
)
def test_files_that_lie(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(metadata(**changes))


@pytest.mark.parametrize("tokens", [None, 7, "abc"])
def test_a_file_without_a_usable_vocabulary(tokens: Any) -> None:
    values = {**metadata(), "tokenizer.ggml.tokens": tokens}
    with pytest.raises(ModelFileError, match="vocab_size"):
        read(values)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, None),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 1.0}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, 4.0),
        ({"rope__scaling__factor": 4.0}, 4.0),
        ({"rope__scale_linear": 2.0}, 2.0),
        ({"rope__scale_linear": 2.0, "rope__scaling__factor": 4.0}, 4.0),
    ],
)
def test_linear_scaling(changes: dict[str, Any], factor: float | None) -> None:
    expected = None if factor is None else RopeScaling(kind="linear", factor=factor)
    assert read(metadata(**changes)).rope_scaling == expected


def yarn(**changes: Any) -> RopeScaling:
    scaling = read(
        metadata(rope__scaling__type="yarn", rope__scaling__factor=4.0, **changes)
    ).rope_scaling
    assert scaling is not None and scaling.kind == "yarn" and scaling.factor == 4.0
    return scaling


def test_yarn() -> None:
    scaling = yarn(
        rope__scaling__original_context_length=64,
        rope__scaling__yarn_beta_fast=16.0,
        rope__scaling__yarn_beta_slow=2.0,
    )
    assert scaling.original_max_position == 64
    assert (scaling.beta_fast, scaling.beta_slow) == (16.0, 2.0)
    assert rope_magnitude(scaling) == pytest.approx(1.138629436)  # 0.1 ln 4 + 1


def test_yarn_whose_trained_length_is_the_context() -> None:
    scaling = yarn()
    assert scaling.original_max_position == 256
    assert (scaling.beta_fast, scaling.beta_slow) == (32.0, 1.0)


def test_yarns_attention_factor_multiplies_its_own_in_these_files() -> None:
    scaling = yarn(rope__scaling__attn_factor=0.5)
    assert rope_magnitude(scaling) == pytest.approx(0.5 * 1.138629436)
