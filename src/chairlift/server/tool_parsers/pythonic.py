"""Calls as a list in Python: `[f(a=1, b="x"), g()]`, at the beginning of an answer.

Llama 4, Llama 3.2, Olmo 3, LFM 2; some put a pair of markers around it.  Values are turned into
JSON as they come.
"""

from __future__ import annotations

import json
import re

from chairlift.server.growing_text import GrowingText, Reading, Script
from chairlift.server.tool_parsers.call_grammar import (
    BareForm,
    CallableTool,
    Grammar,
    in_list,
    members_in_order,
)
from chairlift.server.tool_parsers.offered_tools import OfferedTools
from chairlift.server.tool_parsers.python_literal import copy_literal

OPENERS = ("<|python_start|>", "<|tool_call_start|>", "<function_calls>")
CLOSERS = ("<|python_end|>", "<|tool_call_end|>", "</function_calls>")
_ARGUMENTS = r"""([^()"']|"(\\.|[^"\\])*"|'(\\.|[^'\\])*'|\([^()"']*\))*"""
_NAME = re.compile(r"[a-zA-Z0-9_.\-]+")


def read_pythonic(source: GrowingText, tools: OfferedTools) -> Script:
    yield from _read_list(source, tools)
    while marker := (yield from source.until((*OPENERS, *CLOSERS), source.say)):
        if marker in OPENERS:
            yield from _read_list(source, tools)
        elif not source.has_calls:
            source.say(marker)


def _read_list(source: GrowingText, tools: OfferedTools) -> Script:
    """The calls of one list; what is none is said."""
    source.keep()
    yield from source.skip_next_space()
    opener = yield from source.take_one_of(OPENERS)
    yield from source.skip_next_space()
    is_list = bool((yield from source.take_one_of("[")))
    if is_list or opener:
        while (yield from _read_call(source, tools)):
            source.keep()
            yield from source.skip_next_space()
            mark = yield from source.take_one_of(",]\n")
            if mark == "]" or (not mark and is_list):
                break
            yield from source.skip_next_space()
            if (yield from source.take_one_of("]")):
                break
    kept = source.take_kept()
    source.say(kept.removeprefix("]") if source.has_calls else kept)


def _read_call(source: GrowingText, tools: OfferedTools) -> Reading[bool]:
    """Whether there was a whole one."""
    yield from source.skip_next_space()
    name = yield from _read_name(source)
    if not name or not tools.has(name) or (yield from source.take_one_of("(")) != "(":
        return False
    source.begin_call(name)
    separator = "{"
    while True:
        yield from source.skip_next_space()
        mark = yield from source.take_one_of("),")
        if mark == ")":
            source.add_arguments("{}" if separator == "{" else "}")
            return True
        if mark == ",":
            continue
        if (yield from source.take_one_of(("**",))):
            return (yield from _read_mapping(source))
        key = yield from _read_name(source)
        yield from source.skip_next_space()
        if not key or (yield from source.take_one_of("=")) != "=":
            return False
        source.add_arguments(f"{separator}{json.dumps(key)}: ")
        separator = ", "
        yield from source.skip_next_space()
        if not (yield from copy_literal(source, source.add_arguments)):
            return False


def _read_mapping(source: GrowingText) -> Reading[bool]:
    """All arguments at once, behind two asterisks."""
    yield from source.skip_next_space()
    if not (yield from copy_literal(source, source.add_arguments)):
        return False
    yield from source.skip_next_space()
    return (yield from source.take_one_of(")")) == ")"


def _read_name(source: GrowingText) -> Reading[str]:
    name = ""
    while (yield from source.peek()) and (more := source.run(_NAME)):
        name += more
    return name


def _write_call(grammar: Grammar, tool: CallableTool) -> str:
    """Arguments by name where the schema is plain, else a mapping behind two asterisks."""
    if tool.schema is None:
        return f"{grammar.text(tool.name + '(')} {grammar.pattern(_ARGUMENTS)} {grammar.text(')')}"
    members = members_in_order(tool.schema)
    if members is None:
        return f"{grammar.text(f'{tool.name}(**')} {grammar.json(tool.schema)} {grammar.text(')')}"
    body, before = [], ""
    for member in members:
        one = f"{grammar.text(f'{before}{member.name}=')} {grammar.json(member.schema)}"
        body.append(one if member.is_required else f"({one})?")
        before = ", "
    return " ".join([grammar.text(f"{tool.name}("), *body, grammar.text(")")])


FORM = BareForm(
    group=in_list(_write_call, open="[", between=", ", close="]"),
    leaders=OPENERS,
    other=r"([^\s\[]|\[[^\sa-zA-Z_])(.|\n)*",
)
