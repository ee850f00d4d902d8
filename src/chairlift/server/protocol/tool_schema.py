"""Whether a tool's schema means anything: it reaches the model as text, constrained or not.

Keywords that no grammar can enforce are fine here; what could never be valid is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chairlift.structured_outputs import (
    MAX_REGEX_LENGTH,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_NODES,
)

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains",
            "propertyNames", "unevaluatedProperties", "additionalItems")  # fmt: skip


def fault_of(schema: Mapping[str, Any]) -> str | None:
    """What is wrong with it, if anything."""
    fault = _fault_of_size(schema)
    if fault is not None:
        return fault
    for place in _places(schema):
        fault = _fault_of_place(place, schema)
        if fault is not None:
            return fault
    if not _may_be_object(schema):
        return "describes no object, and arguments are one"
    return None


def _fault_of_size(schema: object) -> str | None:
    if len(json.dumps(schema, ensure_ascii=False).encode("utf-8")) > MAX_SCHEMA_BYTES:
        return f"is longer than {MAX_SCHEMA_BYTES} bytes"
    level, depth, count = [schema], 0, 0
    while level:
        depth += 1
        count += len(level)
        if depth > MAX_SCHEMA_DEPTH:
            return f"is nested deeper than {MAX_SCHEMA_DEPTH} levels"
        if count > MAX_SCHEMA_NODES:
            return f"holds more than {MAX_SCHEMA_NODES} values"
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return None


def _places(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and those within it."""
    pending = [schema]
    while pending:
        place = pending.pop()
        if not isinstance(place, Mapping):
            continue
        yield place
        for name in _SCHEMAS_BY_NAME:
            if isinstance(place.get(name), Mapping):
                pending += place[name].values()
        for name in _SCHEMA_LISTS:
            if isinstance(place.get(name), list):
                pending += place[name]
        for name in _SCHEMAS:
            pending += place[name] if isinstance(place.get(name), list) else [place.get(name)]


def _fault_of_place(place: Mapping[str, Any], root: Mapping[str, Any]) -> str | None:
    kinds = place.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            return f"has the type {str(kind)[:60]!r}, which JSON Schema does not"
    for name in _SCHEMAS_BY_NAME:
        if name in place and not isinstance(place[name], Mapping):
            return f"has {name} that are no object"
    pattern = place.get("pattern")
    if pattern is not None and not _is_pattern(pattern):
        return f"has a pattern that is no regular expression: {str(pattern)[:60]!r}"
    reference = place.get("$ref")
    if reference is not None and not _is_found(reference, root):
        return f"refers to {str(reference)[:60]!r}, which is not in it"
    return None


def _is_pattern(pattern: object) -> bool:
    if not isinstance(pattern, str) or len(pattern) > MAX_REGEX_LENGTH:
        return False
    try:
        re.compile(re.sub(r"\\[pPcCuU]", "x", pattern))  # what Python's dialect does not have
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _is_found(reference: object, root: Mapping[str, Any]) -> bool:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    place: Any = root
    for name in reference[1:].split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and key in place:
            place = place[key]
        elif isinstance(place, list) and key.isdecimal() and int(key[:6]) < len(place):
            place = place[int(key[:6])]
        else:
            return False
    return isinstance(place, Mapping | bool)


def _may_be_object(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", "object")
    return "object" in (kinds if isinstance(kinds, list) else [kinds])
