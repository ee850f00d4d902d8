"""What an answer may consist of: calls of tools, text as the request wants it, thoughts before it.

A grammar holds for what is said and called; what a model thinks before that is free.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from chairlift.grammar.grammar_text import grammar_text
from chairlift.server.answer_reading import AnswerReading
from chairlift.server.protocol.tools import ToolUse
from chairlift.server.reasoning_parsers import HARMONY
from chairlift.server.tool_parsers import harmony
from chairlift.server.tool_parsers.call_grammar import MAX_CALLS, CallableTool, Grammar
from chairlift.server.tool_parsers.families import ToolParser
from chairlift.structured_outputs import StructuredOutputsParams


def answer_constraint(
    asked: StructuredOutputsParams | None,
    use: ToolUse | None,
    reading: AnswerReading,
    prompt: str,
    special_id: Callable[[str], int | None],
) -> StructuredOutputsParams | None:
    """None: the model writes what it likes.  Raises `RequestError` for a grammar that is too long.

    `asked`: what the text must look like where it is no call.  Calls that are required fit their
    schemas whether or not the tool is strict.
    """
    parser = reading.calls_parser(use)
    grammar = Grammar(special_id)
    if use is not None and parser is not None and _binds_calls(asked, use):
        answer = _calls(grammar, asked, use, parser)
    elif asked is None or reading.reasoning is None:
        return asked
    else:
        answer = _text(grammar, asked)
    is_harmony = reading.reasoning is HARMONY or (
        parser is not None and parser.read is harmony.read_harmony
    )
    if is_harmony:
        thoughts = ""
        if use is None or not _binds_calls(asked, use):
            answer = harmony.write_final(grammar, answer)
    else:
        thoughts = grammar.thoughts(reading.thoughts(prompt))
    return StructuredOutputsParams(grammar=grammar.finished(f"{thoughts} ({answer})"))


def _binds_calls(asked: StructuredOutputsParams | None, use: ToolUse) -> bool:
    is_strict = any(tool.function.strict for tool in use.tools)
    return use.must_call or is_strict or asked is not None


def _calls(
    grammar: Grammar, asked: StructuredOutputsParams | None, use: ToolUse, parser: ToolParser
) -> str:
    tools = [
        CallableTool.of(
            tool.function.name,
            tool.function.parameters,
            is_strict=use.must_call or tool.function.strict,
        )
        for tool in use.callable_tools
    ]
    max_calls = use.max_calls or MAX_CALLS
    if use.must_call:
        return parser.form.must(grammar, tools, max_calls)
    if asked is None:
        return parser.form.may(grammar, tools, max_calls)
    text = _text(grammar, asked)
    if parser.read is harmony.read_harmony:
        text = harmony.write_final(grammar, text)
    return f"{grammar.rule(parser.form.must(grammar, tools, max_calls))} | {text}"


def _text(grammar: Grammar, asked: StructuredOutputsParams) -> str:
    """A rule for what was asked for."""
    match asked.kind:
        case "json" | "json_object":
            schema = {"type": "object"} if asked.json is None else json.loads(str(asked.json))
            return grammar.json(schema | _whitespace(asked))
        case "regex":
            assert asked.regex is not None
            return grammar.pattern(asked.regex.replace("/", r"\/"))
        case "choice":
            return grammar.either([json.dumps(text) for text in asked.choice or ()])
    return grammar.rule(f"%lark {{\n{grammar_text(asked)}\n}}")


def _whitespace(asked: StructuredOutputsParams) -> dict[str, object]:
    if asked.disable_any_whitespace:
        return {"x-guidance": {"whitespace_flexible": False}}
    if asked.whitespace_pattern is not None:
        return {"x-guidance": {"whitespace_pattern": asked.whitespace_pattern}}
    return {}
