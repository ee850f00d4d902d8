"""Calls as JSON between tags: `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`.

Hermes, Qwen 2.5 and 3, and many that came after them.  SmolLM 2 puts a list between the tags.
"""

from __future__ import annotations

import re

from chairlift.server.growing_text import GrowingText, Reading, Script
from chairlift.server.tool_parsers.call_grammar import (
    CallableTool,
    Grammar,
    LedForm,
    alone,
    json_object_call,
)
from chairlift.server.tool_parsers.call_object import CallEnd, read_calls
from chairlift.server.tool_parsers.offered_tools import OfferedTools

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_STRAY = re.compile(r"[\s}]+")
"""One brace too many is what small models write most often."""


def read_hermes(source: GrowingText, tools: OfferedTools) -> Script:
    marker = yield from source.until((OPEN, CLOSE), source.say)
    while marker:
        if marker == OPEN:
            marker = yield from _read_tagged_call(source)
            if marker:
                continue
        elif not source.has_calls:
            source.say(CLOSE)
        marker = yield from source.until((OPEN, CLOSE), source.say)


def _read_tagged_call(source: GrowingText) -> Reading[str]:
    """Behind the opening tag; returns the tag that ended it in its middle, if one did."""
    source.keep()
    yield from source.skip_next_space()
    end = yield from read_calls(source)
    kept = source.take_kept()
    if end is CallEnd.NO_CALL:
        source.say(OPEN + kept)
    elif end is CallEnd.BROKEN:
        return (yield from source.until((OPEN, CLOSE), source.add_arguments))
    else:
        while (yield from source.peek()) and source.run(_STRAY):
            pass
    return ""


def _write_call(grammar: Grammar, tool: CallableTool) -> str:
    body = json_object_call("arguments", before="\n", after="\n")
    return f"{body(grammar, tool)} {grammar.text(CLOSE)}"


FORM = LedForm(leader=OPEN, group=alone(_write_call), between="\n")
