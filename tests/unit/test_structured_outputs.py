"""`StructuredOutputsParams` checks itself: shape, size, one kind only."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from chairlift.errors import RequestError
from chairlift.sampling_params import SamplingParams
from chairlift.structured_outputs import (
    KINDS,
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_LENGTH,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_NODES,
    StructuredOutputsParams,
)

VALID: dict[str, Any] = {
    "json": {"type": "object"},
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'start: "a"',
    "json_object": True,
}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"items": value}
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_taken_alone(kind: str) -> None:
    assert StructuredOutputsParams(**{kind: VALID[kind]}).kind == kind


@pytest.mark.parametrize("kind", KINDS)
def test_two_kinds_are_refused(kind: str) -> None:
    other = "regex" if kind != "regex" else "choice"
    with pytest.raises(RequestError, match="exactly one") as caught:
        StructuredOutputsParams(**{kind: VALID[kind], other: VALID[other]})
    assert caught.value.field == "structured_outputs"


def test_none_is_refused() -> None:
    for options in ({}, {"json_object": False}, {"json": None}):
        with pytest.raises(RequestError, match="got none"):
            StructuredOutputsParams(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema",
    [
        {"a": [1, {"b": "ü"}]},
        '{"a": [1, {"b": "ü"}]}',
        MappingProxyType({"a": (1, MappingProxyType({"b": "ü"}))}),
    ],
)
def test_a_schema_is_kept_as_json(schema: str | Mapping[str, Any]) -> None:
    assert StructuredOutputsParams(json=schema).json == '{"a": [1, {"b": "ü"}]}'


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("json", 123, "an object"),
        ("json", "[]", "an object"),
        ("json", "true", "an object"),
        ("json", "{", "no valid JSON"),
        ("json", "[" * 60_000, "no valid JSON"),
        ("json", {"a": float("nan")}, "no form in JSON"),
        ("json", {"a": object()}, "no form in JSON"),
        ("json", {"a": "\ud800"}, "no form in JSON"),
        ("json", {(1, 2): 3}, "no form in JSON"),
        ("json", {"a": "x" * MAX_SCHEMA_BYTES}, "bytes"),
        ("json", {"a": "ü" * (MAX_SCHEMA_BYTES // 2)}, "bytes"),
        ("json", " " * (MAX_SCHEMA_BYTES + 1), "bytes"),
        ("json", nested(MAX_SCHEMA_DEPTH + 1), "levels"),
        ("json", nested(480), "levels"),
        ("json", {"enum": ["x"] * MAX_SCHEMA_NODES}, "values"),
        ("json", {"items": {"minItems": 10**9}}, "minItems"),
        ("json", {"minLength": 1e300}, "minLength"),
        ("regex", "", "not empty"),
        ("regex", 5, "not empty"),
        ("regex", "a" * (MAX_REGEX_LENGTH + 1), "characters"),
        ("regex", "\ud800", "surrogate"),
        ("choice", [], "1 to"),
        ("choice", "yes", "list"),
        ("choice", ["a", ""], "not empty"),
        ("choice", ["a", 1], "not empty"),
        ("choice", ["a"] * (MAX_CHOICES + 1), "1 to"),
        ("choice", ["a" * 40_000, "b" * 40_000], "characters"),
        ("choice", ["\udfff"], "surrogate"),
        ("grammar", " ", "not empty"),
        ("grammar", "x" * (MAX_GRAMMAR_BYTES + 1), "characters"),
        ("json_object", 1, "true or false"),
    ],
)
def test_what_is_bad_is_named(kind: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        StructuredOutputsParams(**{kind: value})
    assert caught.value.field == f"structured_outputs.{kind}"
    assert str(caught.value).startswith(f"structured_outputs.{kind} ")


def test_a_schema_that_holds_itself_is_too_deep() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(RequestError, match="levels"):
        StructuredOutputsParams(json=schema)


def test_limits_are_reached_and_not_passed() -> None:
    for kind, largest, larger in (
        ("json", nested(MAX_SCHEMA_DEPTH), nested(MAX_SCHEMA_DEPTH + 1)),
        ("json", *({"enum": ["x"] * count} for count in (MAX_SCHEMA_NODES - 2, MAX_SCHEMA_NODES))),
        ("regex", "a" * MAX_REGEX_LENGTH, "a" * (MAX_REGEX_LENGTH + 1)),
        ("choice", ["a"] * MAX_CHOICES, ["a"] * (MAX_CHOICES + 1)),
    ):
        assert StructuredOutputsParams(**{kind: largest}).kind == kind
        with pytest.raises(RequestError):
            StructuredOutputsParams(**{kind: larger})


def test_whitespace_is_an_option_of_json() -> None:
    StructuredOutputsParams(json_object=True, disable_any_whitespace=True)
    StructuredOutputsParams(json={}, whitespace_pattern="[ ]?")
    with pytest.raises(RequestError, match="not with regex"):
        StructuredOutputsParams(regex="a", whitespace_pattern="[ ]?")
    with pytest.raises(RequestError, match="not with choice"):
        StructuredOutputsParams(choice=["a"], disable_any_whitespace=True)
    with pytest.raises(RequestError, match="does not go"):
        StructuredOutputsParams(
            json_object=True, whitespace_pattern="a", disable_any_whitespace=True
        )
    with pytest.raises(RequestError, match="true or false"):
        StructuredOutputsParams(json_object=True, disable_any_whitespace="no")  # type: ignore[arg-type]


def test_sampling_params_take_it_and_copy() -> None:
    asked = StructuredOutputsParams(json={"type": "object"})
    params = SamplingParams(structured_outputs=asked)
    assert pickle.loads(pickle.dumps(params)).structured_outputs == asked
    assert copy.deepcopy(params).structured_outputs == asked
    with pytest.raises(RequestError, match="must be StructuredOutputsParams") as caught:
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]
    assert caught.value.field == "structured_outputs"
