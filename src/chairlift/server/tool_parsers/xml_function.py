"""Calls as tags: `<function=f><parameter=a>1</parameter></function>`, within `<tool_call>`.

Qwen 3 Coder and its kin; GLM 4.5 writes `<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>`.
Values are plain text, whose types come from the tool's schema.  JSON within `<tool_call>` or within
`<function=f>` is understood as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from chairlift.server.growing_text import GrowingText, Reading, Script
from chairlift.server.tool_parsers.call_grammar import CallableTool, Grammar
from chairlift.server.tool_parsers.call_object import CallEnd, read_calls
from chairlift.server.tool_parsers.json_copy import copy_json
from chairlift.server.tool_parsers.offered_tools import OfferedTools
from chairlift.server.tool_parsers.tagged_value import copy_tagged

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_TAGS = (OPEN, CLOSE, FUNCTION, FUNCTION_END)
_LINE_END = "\n"
_NAME = re.compile(r"[a-zA-Z0-9_.\-]+")
_ARGUMENT_NAME = re.compile(r"[^<>\n]+")


def read_xml_function(source: GrowingText, tools: OfferedTools) -> Script:
    while tag := (yield from source.until(_TAGS, source.say)):
        if tag == FUNCTION:
            source.keep()
            yield from _read_function(source, tools, tag)
        elif tag == OPEN:
            source.keep()
            yield from _read_tool_call(source, tools)
        elif not source.has_calls:
            source.say(tag)


def _read_tool_call(source: GrowingText, tools: OfferedTools) -> Script:
    yield from source.skip_next_space()
    if (yield from source.take_one_of((FUNCTION,))):
        yield from _read_function(source, tools, OPEN)
    elif (yield from source.peek()) in ("{", "["):
        end = yield from read_calls(source)
        kept = source.take_kept()
        if end is CallEnd.NO_CALL:
            source.say(OPEN + kept)
        elif end is CallEnd.BROKEN:
            yield from source.until((CLOSE,), source.add_arguments)
    else:
        yield from _read_keys_and_values(source, tools)


def _read_function(source: GrowingText, tools: OfferedTools, opener: str) -> Script:
    """Behind `<function=`."""
    name = yield from _read_run(source, _NAME)
    if not name or (yield from source.take_one_of(">")) != ">":
        source.say(opener + source.take_kept())
        return
    source.begin_call(name)
    yield from source.skip_next_space()
    if (yield from source.peek()) == "{":
        if not (yield from copy_json(source, source.add_arguments)):
            yield from source.until((FUNCTION_END, CLOSE), source.add_arguments)
        return
    separator = "{"
    tags = (PARAMETER, FUNCTION_END, CLOSE)
    tag = yield from source.until(tags, _nowhere)
    while tag == PARAMETER:
        key = (yield from _read_run(source, _ARGUMENT_NAME)).strip()
        yield from source.take_one_of(">")
        source.add_arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        closers = (PARAMETER_END, FUNCTION_END, CLOSE)
        tag = yield from copy_tagged(source, closers, tools.kinds(name, key), source.add_arguments)
        if tag == PARAMETER_END:
            tag = yield from source.until(tags, _nowhere)
    if tag:
        source.add_arguments("{}" if separator == "{" else "}")


def _read_keys_and_values(source: GrowingText, tools: OfferedTools) -> Script:
    """A name, then pairs of `<arg_key>` and `<arg_value>`."""
    name = yield from _read_run(source, _NAME)
    yield from source.skip_next_space()
    tag = yield from source.take_one_of((KEY, CLOSE)) if name else _nothing()
    if not tag:
        source.say(OPEN + source.take_kept())
        return
    source.begin_call(name)
    separator = "{"
    while tag == KEY:
        raw: list[str] = []
        tag = yield from source.until((KEY_END, VALUE, CLOSE), raw.append)
        key = "".join(raw).strip()
        if tag == KEY_END:
            tag = yield from source.until((VALUE, CLOSE), _nowhere)
        if tag != VALUE:
            break
        source.add_arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        closers = (VALUE_END, CLOSE)
        tag = yield from copy_tagged(source, closers, tools.kinds(name, key), source.add_arguments)
        if tag == VALUE_END:
            tag = yield from source.until((KEY, CLOSE), _nowhere)
    if tag:
        source.add_arguments("{}" if separator == "{" else "}")


def _read_run(source: GrowingText, pattern: re.Pattern[str]) -> Reading[str]:
    text = ""
    while (yield from source.peek()) and (more := source.run(pattern)):
        text += more
    return text


def _nothing() -> Reading[str]:
    return ""
    yield


def _nowhere(text: str) -> None:
    """What stands between tags means nothing."""


class XmlForm:
    """Arguments that must fit a schema are JSON between the tags of the function."""

    def must(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        call = grammar.rule(f"{grammar.text(OPEN)} {_write_tagged(grammar, tools)}")
        between = grammar.text("\n")
        return f"{call} ({between} {call}){{0,{max_calls - 1}}}" if max_calls > 1 else call

    def may(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        tagged = f"{grammar.text_to(OPEN)} {_write_tagged(grammar, tools)}"
        untagged = f"{grammar.text_to(FUNCTION)} {_write_function(grammar, tools)}"
        return f"({tagged} | {untagged})* {grammar.any_text()}"


def _write_tagged(grammar: Grammar, tools: Sequence[CallableTool]) -> str:
    function = f"{grammar.text(_LINE_END + FUNCTION)} {_write_function(grammar, tools)}"
    return grammar.rule(f"{function} {grammar.text(_LINE_END)} {grammar.text(CLOSE)}")


def _write_function(grammar: Grammar, tools: Sequence[CallableTool]) -> str:
    """Behind `<function=`."""
    bodies = []
    for tool in tools:
        head = grammar.text(f"{tool.name}>{_LINE_END}")
        if tool.schema is None:
            bodies.append(f"{head} {grammar.text_to(FUNCTION_END)}")
        else:
            end = grammar.text(_LINE_END + FUNCTION_END)
            bodies.append(f"{head} {grammar.json(tool.schema)} {end}")
    return grammar.either(bodies)
