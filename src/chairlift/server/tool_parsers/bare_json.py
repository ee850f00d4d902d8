"""Calls as JSON with nothing around them: `{"name": "f", "parameters": {"a": 1}}`.

Llama 3: an answer that begins with such an object is a call, and so is what follows
`<|python_tag|>`.  Several are parted by semicolons.  An object that names no tool is an answer.
"""

from __future__ import annotations

from chairlift.server.growing_text import GrowingText, Script
from chairlift.server.tool_parsers.call_grammar import BareForm, in_list, json_object_call
from chairlift.server.tool_parsers.call_object import CallEnd, read_call
from chairlift.server.tool_parsers.offered_tools import OfferedTools

PYTHON_TAG = "<|python_tag|>"


def read_bare_json(source: GrowingText, tools: OfferedTools) -> Script:
    yield from _read_calls(source, tools)
    while (yield from source.until((PYTHON_TAG,), source.say)):
        yield from _read_calls(source, tools)


def _read_calls(source: GrowingText, tools: OfferedTools) -> Script:
    """As many as come one after the other; what is none is said."""
    source.keep()
    yield from source.skip_next_space()
    if (yield from source.take_one_of((PYTHON_TAG,))):
        yield from source.skip_next_space()
    is_list = bool((yield from source.take_one_of("[")))
    while True:
        yield from source.skip_next_space()
        end = yield from read_call(source, tools.has)
        kept = source.take_kept()
        if end is not CallEnd.WHOLE:
            if end is CallEnd.BROKEN:
                yield from source.until((PYTHON_TAG,), source.add_arguments)
            source.say(kept.replace(PYTHON_TAG, ""))
            return
        source.keep()
        yield from source.skip_next_space()
        mark = yield from source.take_one_of(";,]")
        if mark == "]" and is_list:
            source.take_kept()
            return
        if not mark and (yield from source.peek()) != "{":
            source.say(source.take_kept())
            return


FORM = BareForm(
    group=in_list(json_object_call("parameters"), open="", between="; ", close=""),
    leaders=(PYTHON_TAG,),
    other=r'([^\s{\[]|\{[^\s"]|\{"[^n]|\[[^\s{])(.|\n)*',
)
