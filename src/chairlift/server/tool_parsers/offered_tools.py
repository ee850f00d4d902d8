"""OfferedTools: what a parser may know of the tools that a request offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Functions by name, with the JSON schema of their arguments."""

    schemas: Mapping[str, Mapping[str, Any]]

    def has(self, name: str) -> bool:
        return name in self.schemas

    def kinds(self, function: str, argument: str) -> frozenset[str]:
        """JSON types that an argument may have; empty if its schema does not say."""
        properties = self.schemas.get(function, {}).get("properties")
        schema = properties.get(argument) if isinstance(properties, Mapping) else None
        return _kinds(schema, depth=0)


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array",
          dict: "object", type(None): "null"}  # fmt: skip
_MAX_DEPTH = 4


def _kinds(schema: Any, *, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(name for name in kind if isinstance(name, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(_NAMES[type(value)] for value in values if type(value) in _NAMES)
    for name in ("anyOf", "oneOf"):
        members = schema.get(name)
        if isinstance(members, list) and members:
            found = [_kinds(member, depth=depth + 1) for member in members]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()
