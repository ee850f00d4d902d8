"""Calls behind `[TOOL_CALLS]`, in the three ways that Mistral's models have had.

`[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, later `[TOOL_CALLS]f{...}` and
`[TOOL_CALLS]f[ARGS]{...}`, each call with a marker of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from chairlift.server.growing_text import GrowingText, Reading, Script
from chairlift.server.tool_parsers.call_grammar import (
    CallableTool,
    Grammar,
    LedForm,
    alone,
    in_list,
    json_object_call,
)
from chairlift.server.tool_parsers.call_object import CallEnd, read_calls
from chairlift.server.tool_parsers.json_copy import copy_json
from chairlift.server.tool_parsers.offered_tools import OfferedTools

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[a-zA-Z0-9_.\-]+")
_ID = re.compile(r"[a-zA-Z0-9]+")


def read_mistral(source: GrowingText, tools: OfferedTools) -> Script:
    while (yield from source.until((CALLS,), source.say)):
        while (yield from _read_calls(source)):
            pass


def _read_calls(source: GrowingText) -> Reading[bool]:
    """Behind a marker; whether another marker has ended it in its middle."""
    source.keep()
    yield from source.skip_next_space()
    char = yield from source.peek()
    if char in ("[", "{"):
        end = yield from read_calls(source)
    else:
        end = yield from _read_named(source)
    kept = source.take_kept()
    if end is CallEnd.BROKEN:
        return bool((yield from source.until((CALLS,), source.add_arguments)))
    if end is CallEnd.NO_CALL:
        source.say(CALLS + kept)
    return False


def _read_named(source: GrowingText) -> Reading[CallEnd]:
    name = ""
    while (yield from source.peek()) and (more := source.run(_NAME)):
        name += more
    if not name:
        return CallEnd.NO_CALL
    if (yield from source.take_one_of((CALL_ID, ARGS))) == CALL_ID:
        while (yield from source.peek()) and source.run(_ID):
            pass
        yield from source.take_one_of((ARGS,))
    yield from source.skip_next_space()
    if (yield from source.peek()) != "{":
        return CallEnd.NO_CALL
    source.begin_call(name)
    is_whole = yield from copy_json(source, source.add_arguments)
    return CallEnd.WHOLE if is_whole else CallEnd.BROKEN


class MistralForm:
    """The newest form that the model's control tokens tell of."""

    def must(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        return _form_of(grammar).must(grammar, tools, max_calls)

    def may(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        return _form_of(grammar).may(grammar, tools, max_calls)


def _form_of(grammar: Grammar) -> LedForm:
    if grammar.has_special(ARGS):
        return LedForm(leader=CALLS, group=alone(_write_named))
    objects = in_list(json_object_call("arguments"), open="[", between=", ", close="]")
    return LedForm(leader=CALLS, group=objects, holds_all=True)


def _write_named(grammar: Grammar, tool: CallableTool) -> str:
    return f"{grammar.text(tool.name)} {grammar.text(ARGS)} {grammar.json(tool.schema)}"
