"""JSON schemas made from a seed: those that a user would write, and those that nobody should."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

PATTERNS = (
    "^[a-z]{2,5}$",
    "^[A-Z][a-z]+$",
    r"^\d{3}-\d{4}$",
    "^(red|green|blue)!?$",
    "^[^ ]{1,8}$",
)
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4")
WORDS = ("name", "age", "size", "colour", "größe", "items", "id", "kind", "note", "tag list", "x-y")


class SchemaMaker:
    """A schema for a seed, with what schemas have: nesting, enums, arrays, patterns, references.

    All of it ends soon: what is open-ended has a bound, for a small model finds no end of itself.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._definitions: dict[str, Schema] = {}

    def schema(self) -> Schema:
        root = self._object(0)
        if self._definitions:
            root["$defs"] = self._definitions
        return root

    def _any(self, depth: int) -> Schema:
        kinds: list[Callable[[int], Schema]] = [
            self._string, self._integer, self._number, self._enum, self._simple,
        ]  # fmt: skip
        if depth < 3:
            kinds += [self._object, self._array, self._union, self._reference, self._object]
        return self._random.choice(kinds)(depth)

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(WORDS, self._random.randint(1, 4))
        required = [name for name in names if self._random.random() < 0.7]
        schema: Schema = {
            "type": "object",
            "properties": {name: self._any(depth + 1) for name in names},
            "additionalProperties": False,
        }
        if required:
            schema["required"] = required
        return schema

    def _array(self, depth: int) -> Schema:
        low = self._random.randint(0, 2)
        schema = {"type": "array", "items": self._any(depth + 1), "maxItems": low + 2}
        if low:
            schema["minItems"] = low
        if self._random.random() < 0.2:
            schema = {
                "type": "array",
                "prefixItems": [self._any(depth + 2), self._any(depth + 2)],
                "items": False,
                "minItems": 2,
            }
        return schema

    def _union(self, depth: int) -> Schema:
        members = [self._any(depth + 1) for _ in range(self._random.randint(2, 3))]
        return {"anyOf": members}

    def _reference(self, depth: int) -> Schema:
        name = f"d{len(self._definitions)}"
        self._definitions[name] = {}
        self._definitions[name] = self._any(depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def _string(self, depth: int) -> Schema:
        choice = self._random.random()
        if choice < 0.3:
            return {"type": "string", "pattern": self._random.choice(PATTERNS), "maxLength": 12}
        if choice < 0.5:
            return {"type": "string", "format": self._random.choice(FORMATS)}
        low = self._random.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + self._random.randint(1, 9)}

    def _integer(self, depth: int) -> Schema:
        low = self._random.randint(-100, 100)
        schema: Schema = {"type": "integer", "minimum": low}
        key = self._random.choice(("maximum", "exclusiveMaximum"))
        schema[key] = low + self._random.randint(1, 1000)
        return schema

    def _number(self, depth: int) -> Schema:
        return {"type": "number", "minimum": 0, "maximum": self._random.choice((1, 9.5, 100))}

    def _enum(self, depth: int) -> Schema:
        values = ["a", "b c", 'quo"te', 1, 2.5, None, True, [1], {"k": "v"}, "größe"]
        return {"enum": self._random.sample(values, self._random.randint(1, 4))}

    def _simple(self, depth: int) -> Schema:
        return self._random.choice(
            [
                {"type": "boolean"},
                {"type": "null"},
                {"const": "fixed"},
                {"type": ["boolean", "null"]},
            ]
        )


def hostile_schemas() -> list[Schema]:
    """A hundred that must be refused or bounded: deep, wide, endless, contradictory, nonsense."""
    made: list[Schema] = []
    for depth in (30, 31, 60, 100, 480, 2000):
        made += [_nested(depth, _member), _nested(depth, _item), _nested(depth, _choice)]
    made += [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"allOf": [{"$ref": "#"}, {"type": "object"}]},
        {"$ref": "http://127.0.0.1:9/x.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/missing"},
        {"enum": []},
        {"anyOf": []},
        {"type": []},
        {"type": "something"},
        {"type": 5},
        {"properties": 5},
        {"required": "a"},
        {"enum": 5},
        {"items": 7},
        {"not": {}},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "minLength": 5, "maxLength": 4},
        {"type": "integer", "multipleOf": 0},
        {"type": "integer", "multipleOf": -1},
        {"type": "number", "multipleOf": 1e-300},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "object", "minProperties": 10**9},
        {"type": "array", "items": {"type": "array", "maxItems": 10**9}, "maxItems": 10**9},
        {"type": "string", "maxLength": 10**9},
        {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
        {"type": "string", "pattern": "((("},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "pattern": "((a{1,500}){1,500}){1,500}"},
        {"type": "string", "pattern": "^(.*a.{400}){400}$"},
        {"type": "string", "pattern": "x" * 60_000},
        {"type": "string", "pattern": "^(a|b)*a.{20}$", "minLength": 10, "maxLength": 5000},
        {"enum": [str(index) for index in range(50_000)]},
        {"enum": [str(index) for index in range(1900)]},
        {"enum": ["x" * 60_000]},
        {"const": ["y" * 3000] * 10},
        {"allOf": [{"minLength": 1}] * 1000},
        {"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(400)]},
        {"properties": {f"p{index}": {"type": "string"} for index in range(900)}},
        {"patternProperties": {f"^{'a' * index}": {} for index in range(1, 200)}},
        {"propertyNames": {"pattern": "^(a|b)*a.{30}$"}, "minProperties": 3},
        {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]},
        {"if": {"type": "string"}, "then": {"minLength": 3}},
        {"$dynamicRef": "#x"},
        {"x-guidance": {"whitespace_pattern": "((("}},
        {"x-guidance": 5},
    ]
    for count in (2, 5, 20, 60):
        made += [
            {"allOf": [{"type": "string", "pattern": f"^(a|b)*{'.' * i}$"} for i in range(count)]},
            {"allOf": [{"type": "string", "pattern": f"(a|b)*a.{{{i}}}"} for i in range(count)]},
            {"allOf": [{"type": "string", "pattern": f"^.*{i}.*$"} for i in range(count)]},
        ]
    made += [{"type": "integer", "multipleOf": 10**power + 3} for power in range(2, 9)]
    made += [{"type": "number", "multipleOf": 1 / (10**power + 3)} for power in range(2, 6)]
    made += [
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}{j}": {}}} for i in range(6)]} for j in range(k)
            ]
        }
        for k in range(2, 9)
    ]
    made += [
        {"type": "array", "items": {"enum": [f"{i}-{j}" for j in range(20)]}, "maxItems": 10**i}
        for i in range(1, 9)
    ]
    assert len(made) >= 100, len(made)
    return made


def _nested(depth: int, wrap: Callable[[Schema], Schema]) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def _member(schema: Schema) -> Schema:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def _item(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _choice(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}
