"""The numbers of a model, and checked look-ups in a file that may lie."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chairlift.errors import ModelFileError
from chairlift.models.model_config import Metadata, ModelConfig

SIZES: dict[str, Any] = {
    "architecture": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_position": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "rope_dim": 16,
    "rope_interleaved": False,
}


def test_parameters_that_a_token_meets() -> None:
    layer = 64 * (4 + 2 + 2) * 16 + 4 * 16 * 64 + 3 * 64 * 96
    assert ModelConfig(**SIZES).num_parameters == 3 * layer + 256 * 64


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[
            (name, value, name)
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_layers",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "max_position",
            )
            for value in (0, -1, 2**40)
        ],
        ("num_kv_heads", 3, "4 query heads cannot share 3 key/value heads"),
        ("num_kv_heads", 8, "cannot share"),
        ("rope_dim", 18, "rope dimension of 18 does not fit heads of 16"),
        ("rope_dim", 7, "rope dimension"),
        ("rope_dim", 0, "rope dimension"),
        ("rope_theta", 1.0, "rope base"),
        ("rope_theta", math.nan, "rope base"),
        ("rope_theta", math.inf, "rope base"),
        ("rms_norm_eps", 0.0, "epsilon"),
        ("rms_norm_eps", 1.0, "epsilon"),
        ("rms_norm_eps", math.nan, "epsilon"),
        ("sliding_window", 0, "sliding window"),
    ],
)
def test_numbers_that_make_no_model(name: str, value: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        ModelConfig(**{**SIZES, name: value})


class Sized:
    """As an array of numpy: it has a length and is no list."""

    def __len__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return "array([1,\n 2])"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", 1.0),
        ("integer", True),
        ("integer", "1"),
        ("integer", [1, 2]),
        ("integer", Sized()),
        ("number", True),
        ("number", "1"),
        ("number", math.nan),
        ("number", math.inf),
        ("number", 10**400),
        ("number", Sized()),
        ("text", 1),
        ("text", ["a"]),
        ("flag", 1),
        ("flag", "true"),
        ("integer", "x" * 100_000),
    ],
)
def test_a_value_of_the_wrong_type_is_one_line_that_names_the_key(kind: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"^llama\.size should be ") as caught:
        getattr(Metadata({"llama.size": value}, "llama."), kind)("size")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("kind", ["integer", "number", "text", "flag"])
@pytest.mark.parametrize("values", [{}, {"llama.size": None}])
def test_a_missing_key_is_named(kind: str, values: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"the model file lacks llama\.size"):
        getattr(Metadata(values, "llama."), kind)("size")


def test_defaults_stand_for_missing_keys_and_nulls_only() -> None:
    keys = Metadata({"zero": 0, "null": None, "empty": "", "false": False})
    assert keys.integer("zero", 5) == 0
    assert keys.integer("null", 5) == keys.integer("absent", 5) == 5
    assert keys.text("empty", "x") == ""
    assert keys.flag("false", True) is False
    assert keys.number("absent", 2.5) == 2.5
    assert keys.number("zero") == 0.0 and isinstance(keys.number("zero"), float)
    assert keys.has("zero") and not keys.has("null") and not keys.has("absent")
