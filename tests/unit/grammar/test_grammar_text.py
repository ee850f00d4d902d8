"""From params to the grammar that llguidance reads."""

from __future__ import annotations

import json

import pytest

from chairlift.grammar.grammar_text import WHITESPACE_PATTERN, bounded_whitespace, grammar_text
from chairlift.structured_outputs import StructuredOutputsParams

OPTION = json.dumps({"whitespace_pattern": WHITESPACE_PATTERN})


@pytest.mark.parametrize(
    ("lark", "expected"),
    [
        ("start: %json {}", f'start: %json {{"x-guidance": {OPTION}}}'),
        (
            'start: a b\na: %json {"type": "object"}\nb: %json\n{"enum": ["}", "%json {"]} a',
            f'start: a b\na: %json {{"x-guidance": {OPTION}, "type": "object"}}\n'
            f'b: %json\n{{"x-guidance": {OPTION}, "enum": ["}}", "%json {{"]}} a',
        ),
        ('start: "%json {}" /%json {}/ // %json {}', None),
        ('start: %json {"x-guidance": {"whitespace_flexible": false}}', None),
        ("start: %json {", None),
        ("start: %json " + '{"a": ' * 100_000, None),
        (r'start: "\"%json {}" X # %json {}', None),
    ],
    ids=range(7),
)
def test_whitespace_is_bounded_where_json_is_meant(lark: str, expected: str | None) -> None:
    assert bounded_whitespace(lark) == (lark if expected is None else expected)


def test_gbnf_is_converted_and_lark_is_not() -> None:
    gbnf = grammar_text(StructuredOutputsParams(grammar='root ::= "a" [0-9]+'))
    assert "start:" in gbnf and "::=" not in gbnf
    lark = 'start: "root ::= x"'
    assert grammar_text(StructuredOutputsParams(grammar=lark)) == lark
    with pytest.raises(ValueError, match="at line"):
        grammar_text(StructuredOutputsParams(grammar="root ::= ("))


def test_whitespace_options_of_json() -> None:
    def options(**more: object) -> object:
        text = grammar_text(StructuredOutputsParams(json={"type": "object"}, **more))  # type: ignore[arg-type]
        return json.loads(text)["grammars"][0]["json_schema"]["x-guidance"]

    assert options() == {"whitespace_pattern": WHITESPACE_PATTERN}
    assert options(disable_any_whitespace=True) == {"whitespace_flexible": False}
    assert options(whitespace_pattern="x?") == {"whitespace_pattern": "x?"}
