"""From `StructuredOutputsParams` to the text of a grammar as llguidance reads it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from chairlift.grammar.parser_limits import GrammarError, first_line
from chairlift.structured_outputs import StructuredOutputsParams

WHITESPACE_PATTERN: Final = r" ?|\r?\n[ \t]{0,32}"
"""Between the parts of JSON: both compact and indented text, and never an endless run of it."""

_LARK_PIECES: Final = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*"  # a text
    | /(?![/*])(?:\\.|[^/\\\n])+/  # a regular expression
    | (?://|\#)[^\n]*  # a comment
    | (?P<json>%json\s*(?={))
    """,
    re.VERBOSE,
)
"""What may hold "%json" as text, and what is a schema."""
_GBNF: Final = re.compile(r"^\s*root\s*::=", re.MULTILINE)


def grammar_text(params: StructuredOutputsParams) -> str:
    """Raises `GrammarError` for a GBNF grammar that cannot be converted."""
    from llguidance import LLMatcher

    if params.json is not None:
        return _of_schema(str(params.json), params)
    if params.json_object:
        return _of_schema('{"type": "object"}', params)
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        return LLMatcher.grammar_from_lark(
            "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
        )
    return LLMatcher.grammar_from_lark(bounded_whitespace(_lark(params.grammar or "")))


def bounded_whitespace(lark: str) -> str:
    """The same grammar with our whitespace in every `%json` that does not say which it wants."""
    decoder = json.JSONDecoder()
    option = f'"x-guidance": {json.dumps({"whitespace_pattern": WHITESPACE_PATTERN})}'
    parts, done, position = [], 0, 0
    while (piece := _LARK_PIECES.search(lark, position)) is not None:
        position = piece.end()
        if piece["json"] is None:
            continue
        try:
            schema, position = decoder.raw_decode(lark, position)
        except (ValueError, RecursionError):
            break  # llguidance says what is wrong with it
        if "x-guidance" not in schema:
            brace = piece.end() + 1
            parts.append(f"{lark[done:brace]}{option}{', ' if schema else ''}")
            done = brace
    return "".join([*parts, lark[done:]])


def _of_schema(schema: str, params: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher

    options: dict[str, Any] = {"whitespace_pattern": params.whitespace_pattern}
    if params.disable_any_whitespace:
        options = {"whitespace_flexible": False}
    elif params.whitespace_pattern is None:
        options = {"whitespace_pattern": WHITESPACE_PATTERN}
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]


def _lark(grammar: str) -> str:
    if not _GBNF.search(grammar):
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None
    except Exception as error:  # the converter's own exceptions have no base but this
        raise GrammarError(first_line(str(error))) from None
