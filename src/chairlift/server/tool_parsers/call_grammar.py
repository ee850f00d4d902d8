"""Grammars that let nothing but valid calls be written, as text that llguidance reads.

Each family has its own way of writing a call; the arguments are JSON of the tool's schema in all of
them.  Text in front of calls, and thoughts in front of all, are free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_CALLS = 8
"""In one answer: a small model that must call would often not stop by itself."""

_TEXT = r"(.|\n)*"
_LINE_ENDS = r"\n{0,2}"
_IDENTIFIER = re.compile(r"[a-zA-Z_]\w*", re.ASCII)
_NO_MEMBERS = {"type": "object", "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any] | None
    """Of its arguments, as the grammar is to enforce it; None: they may be anything."""

    @classmethod
    def of(
        cls, name: str, parameters: Mapping[str, Any] | None, *, is_strict: bool
    ) -> CallableTool:
        if not is_strict:
            return cls(name=name, schema=None)
        return cls(name=name, schema=_object_schema(parameters))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """What may be thought before everything else."""

    open: str
    close: str
    is_open: bool
    """The prompt has begun them."""


class Grammar:
    """Rules that grow; each method returns what stands for them in other rules."""

    def __init__(self, special_id: Callable[[str], int | None]) -> None:
        """`special_id`: the control token that is spelled so, if there is one."""
        self._special_id = special_id
        self._rules: list[str] = []

    def text(self, text: str) -> str:
        """A marker or any other text, word for word."""
        token_id = self._special_id(text)
        if token_id is not None:
            return f"<[{token_id}]>"
        return json.dumps(text, ensure_ascii=False)

    def json(self, schema: Mapping[str, Any] | None) -> str:
        """A value of that schema; None: any object."""
        schema = {"type": "object"} if schema is None else schema
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def rule(self, body: str, *, option: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{option}: {body}")
        return name

    def any_text(self) -> str:
        return self.pattern(_TEXT)

    def pattern(self, regex: str) -> str:
        return self.rule(f"/{regex}/")

    def text_to(self, marker: str) -> str:
        """Any text up to and with the first `marker`."""
        if self.has_special(marker):
            return self.rule(f"{self.any_text()} {self.text(marker)}")
        return self.rule(f"/{_TEXT}/ {json.dumps(marker)}", option="[lazy]")

    def has_special(self, text: str) -> bool:
        return self._special_id(text) is not None

    def special_to(self, marker: str) -> str:
        """The same where the marker is a control token; empty elsewhere."""
        return self.text_to(marker) if self.has_special(marker) else ""

    def either(self, bodies: Sequence[str]) -> str:
        return self.rule(" | ".join(bodies))

    def thoughts(self, thoughts: Thoughts | None) -> str:
        """In front of an answer; empty if there may be none."""
        if thoughts is None:
            return ""
        rest = f"{self.text_to(thoughts.close)} {self.pattern(_LINE_ENDS)}"
        if thoughts.is_open:
            return self.rule(rest)
        return self.rule(f"({self.text(thoughts.open)} {rest})?")

    def finished(self, start: str) -> str:
        """The grammar's text, with what an answer consists of."""
        return "\n".join([f"start: {start}", *self._rules])


class CallForm(Protocol):
    """How a family writes calls; both methods return what an answer consists of."""

    def must(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        """At least one call, and nothing beside calls."""
        ...

    def may(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        """Any text, in which whatever begins as a call is one."""
        ...


CallWriter = Callable[[Grammar, CallableTool], str]
"""One call of one function."""
Group = Callable[[Grammar, Sequence[CallableTool], int], str]
"""One call, or several in one pair of brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedForm:
    """Calls behind a marker that nothing else begins with."""

    leader: str
    group: Group
    between: str = ""
    holds_all: bool = False
    """A group is a list of all calls, so that there is one group."""

    def must(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        leader, group = grammar.text(self.leader), self.group(grammar, tools, max_calls)
        between = grammar.text(self.between) if self.between else ""
        if self.holds_all or max_calls == 1:
            return f"{leader} {group}"
        return f"{leader} {group} ({between} {leader} {group}){{0,{max_calls - 1}}}"

    def may(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        group = self.group(grammar, tools, max_calls)
        return f"({grammar.text_to(self.leader)} {group})* {grammar.any_text()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BareForm:
    """Calls with which an answer begins, or which stand behind markers that may be there."""

    group: Group
    leaders: Sequence[str]
    other: str
    """Regular expression of texts that do not begin as a call."""

    def must(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        return self.group(grammar, tools, max_calls)

    def may(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        group = self.group(grammar, tools, max_calls)
        led = [grammar.special_to(leader) for leader in self.leaders]
        behind = grammar.either([f"{text} {group}" for text in led if text] or [group])
        other = grammar.pattern(self.other)
        return f"{behind} | {group} | {other}" if any(led) else f"{group} | {other}"


def in_list(call: CallWriter, *, open: str, between: str, close: str) -> Group:
    """A group of calls between two texts."""

    def group(grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        one = grammar.either([call(grammar, tool) for tool in tools])
        more = f"({grammar.text(between)} {one}){{0,{max_calls - 1}}}" if max_calls > 1 else ""
        first = grammar.text(open) if open else ""
        last = grammar.text(close) if close else ""
        return grammar.rule(f"{first} {one} {more} {last}")

    return group


def alone(call: CallWriter) -> Group:
    """Each call by itself."""
    return lambda grammar, tools, max_calls: grammar.either([call(grammar, tool) for tool in tools])


def json_object_call(key: str, before: str = "", after: str = "") -> CallWriter:
    """An object with the function's name, and its arguments under `key`."""

    def call(grammar: Grammar, tool: CallableTool) -> str:
        head = f'{before}{{"name": {json.dumps(tool.name)}, "{key}": '
        return f"{grammar.text(head)} {grammar.json(tool.schema)} {grammar.text('}' + after)}"

    return call


def _object_schema(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A schema that takes objects only, and of those no more than the tool's own does.

    Members that it does not name are left out where it would take any: nobody has asked for them.
    """
    if parameters is None:
        return _NO_MEMBERS
    schema = dict(parameters)
    if "$ref" not in schema:
        schema["type"] = "object"
    is_plain = not any(
        name in schema
        for name in ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "not", "if")
    )
    if is_plain and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


@dataclass(frozen=True, slots=True)
class Member:
    """One of an object's members."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool


_PLAIN_KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs",
    "definitions", "$schema",
}  # fmt: skip


def members_in_order(schema: Mapping[str, Any]) -> list[Member] | None:
    """Members of a plain object, the required ones first; None for any other schema.

    There is a required one, unless there are no members.
    """
    properties = schema.get("properties", {})
    is_plain = set(schema) <= _PLAIN_KEYWORDS and schema.get("additionalProperties") is False
    if not is_plain or not all(_IDENTIFIER.fullmatch(name) for name in properties):
        return None
    required = schema.get("required", [])
    if set(required) - set(properties) or (properties and not required):
        return None
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    members = [
        Member(name, {**shared, **member} if isinstance(member, Mapping) else {}, name in required)
        for name, member in properties.items()
    ]
    return sorted(members, key=lambda member: not member.is_required)
