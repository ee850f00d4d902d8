"""Whatever a grammar of calls lets through is read as calls whose arguments fit the tools."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from answer_reading_cases import calls_of, reader, tool_use
from chairlift.grammar.grammar_text import bounded_whitespace
from chairlift.server.answer_parts import WholeAnswer, read_whole
from chairlift.server.tool_parsers.call_grammar import (
    CallableTool,
    Grammar,
    Thoughts,
    members_in_order,
)
from chairlift.server.tool_parsers.families import TOOL_PARSERS, ToolParser

NUM_WALKS = 200 if os.environ.get("CHAIRLIFT_FULL") else 4
MAX_STEPS = 600
LIKELY = set(b"abcABC19 {}[]()\"':,\n")
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,5}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
}
ENTRY = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "more": {"$ref": "#/$defs/more"}},
    "$defs": {"more": {"type": "array", "items": {"type": "null"}, "maxItems": 2}},
    "minProperties": 1,
}
TOOLS = [
    CallableTool.of("look_up", PLACE, is_strict=True),
    CallableTool.of("stop", None, is_strict=True),
    CallableTool.of("enter", ENTRY, is_strict=True),
]
THINKING = Thoughts(open="<think>", close="</think>", is_open=True)


class Bytes:
    """A vocabulary of single bytes, an end, and control tokens."""

    is_tokenizer_wrapper = True

    def __init__(self, markers: tuple[str, ...]) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.tokens += [b"<|end|>!", *(marker.encode() for marker in markers)]
        self.eos_token_id, self.bos_token_id = 256, None
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def special_id(self, text: str) -> int | None:
        wanted = text.encode()
        return self.tokens.index(wanted, 256) if wanted in self.tokens[256:] else None


def walk(lark: str, vocabulary: Bytes, seed: int, ends: float = 1.0) -> str | None:
    """A text that the grammar lets through, at random; None if it has not ended in time.

    `ends`: how likely an end is taken where there may be one.
    """
    tokenizer = LLTokenizer(vocabulary, n_vocab=len(vocabulary.tokens))  # type: ignore[arg-type]
    grammar = LLMatcher.grammar_from_lark(bounded_whitespace(lark))
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), (matcher.get_error(), lark)
    chosen = random.Random(seed)
    data = b""
    for _ in range(MAX_STEPS):
        if matcher.is_stopped():
            return data.decode()
        mask = matcher.compute_logit_bias()
        allowed = [token for token in range(len(vocabulary.tokens)) if mask[token]]
        assert allowed, matcher.get_error()
        if 256 in allowed and chosen.random() < ends:
            return data.decode()
        plain = [token for token in allowed if token in LIKELY or token > 256]
        token = chosen.choice(plain or [token for token in allowed if token != 256] or allowed)
        assert matcher.consume_token(token)
        data += vocabulary.tokens[token]
    return None


def is_valid(name: str, arguments: str) -> bool:
    value: dict[str, Any] = json.loads(arguments)
    if name == "stop":
        return value == {}
    if name == "enter":
        return bool(value) and set(value) <= {"kind", "more"} and value.get("kind", "a") in "ab"
    return (
        {"city", "days"} <= set(value) <= {"city", "days", "exact"}
        and value["city"].isalpha()
        and 1 <= value["days"] <= 9
        and isinstance(value.get("exact", True), bool)
    )


def read(parser: str, text: str, *, reasoning: str | None = None) -> WholeAnswer:
    use = tool_use(names=("look_up", "stop", "enter"))
    return read_whole(reader(parser, use=use, reasoning=reasoning, prompt="<think>"), text)


def markers_of(parser: ToolParser, has_markers: bool) -> tuple[str, ...]:
    return (*parser.markers, "[ARGS]") if has_markers else ()


@pytest.mark.parametrize("has_markers", [False, True])
@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_required_calls_are_read_and_valid(name: str, has_markers: bool) -> None:
    parser = TOOL_PARSERS[name]
    vocabulary = Bytes(markers_of(parser, has_markers))
    num_read = 0
    for seed in range(NUM_WALKS):
        grammar = Grammar(vocabulary.special_id)
        lark = grammar.finished(parser.form.must(grammar, TOOLS, max_calls=3))
        text = walk(lark, vocabulary, seed)
        if text is None:
            continue
        num_read += 1
        answer = read(name, text)
        assert 1 <= len(answer.calls) <= 3 and not answer.text, text
        for function, arguments in calls_of(answer):
            assert is_valid(function, arguments), text
    assert num_read >= NUM_WALKS // 4


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_a_single_call_where_no_more_are_wanted(name: str) -> None:
    parser = TOOL_PARSERS[name]
    vocabulary = Bytes(())
    for seed in range(NUM_WALKS):
        grammar = Grammar(vocabulary.special_id)
        lark = grammar.finished(parser.form.must(grammar, TOOLS[:1], max_calls=1))
        text = walk(lark, vocabulary, seed, ends=0.0)
        assert text is None or len(read(name, text).calls) == 1


@pytest.mark.parametrize("name", [name for name in TOOL_PARSERS if name != "openai"])
def test_thoughts_come_first_and_are_free(name: str) -> None:
    parser = TOOL_PARSERS[name]
    vocabulary = Bytes(())
    grammar = Grammar(vocabulary.special_id)
    start = f"{grammar.thoughts(THINKING)} ({parser.form.must(grammar, TOOLS[1:2], 1)})"
    lark = grammar.finished(start)
    tokenizer = LLTokenizer(vocabulary, n_vocab=len(vocabulary.tokens))  # type: ignore[arg-type]
    grammar_text = LLMatcher.grammar_from_lark(bounded_whitespace(lark))
    matcher = LLMatcher(tokenizer, grammar_text, log_level=0)
    thought = b"Hm {<tool_call>[ ...\n</think>"
    assert matcher.consume_tokens(list(thought)), matcher.get_error()
    rest = b""
    while not matcher.is_stopped() and len(rest) < 200:
        mask = matcher.compute_logit_bias()
        token = max((t for t in range(256) if mask[t]), key=lambda t: (t > 32, t))
        matcher.consume_token(token)
        rest += bytes([token])
    answer = read(name, (thought + rest).decode(), reasoning="qwen3")
    assert answer.reasoning == "Hm {<tool_call>[ ..." and calls_of(answer) == [("stop", "{}")]


BEGUN = {
    "hermes": 'Well.\n<tool_call>\n{"name": "look_up", "arguments": {"city": ',
    "llama3_json": '{"name": "look_up", "parameters": {"city": ',
    "mistral": 'Well. [TOOL_CALLS][{"name": "look_up", "arguments": {"city": ',
    "pythonic": "[look_up(city=",
    "qwen3_coder": 'Well.\n<tool_call>\n<function=look_up>\n{"city": ',
    "openai": "<|channel|>analysis<|message|>Well.<|end|><|start|>assistant<|channel|>commentary"
    ' to=functions.look_up <|constrain|>json<|message|>{"city": ',
}


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_strict_tools_bind_what_begins_as_a_call_and_no_text(name: str) -> None:
    """After a free text up to the first argument, only what the schema takes."""
    vocabulary = Bytes(())
    tokenizer = LLTokenizer(vocabulary, n_vocab=len(vocabulary.tokens))  # type: ignore[arg-type]

    def matcher() -> LLMatcher:
        grammar = Grammar(vocabulary.special_id)
        lark = grammar.finished(TOOL_PARSERS[name].form.may(grammar, TOOLS, max_calls=3))
        return LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)

    begun = matcher()
    assert begun.consume_tokens(list(BEGUN[name].encode())), begun.get_error()
    mask = begun.compute_logit_bias()
    allowed = {chr(token) for token in range(128) if mask[token]}
    assert '"' in allowed and not allowed & set("5ntf{[-'")
    free = matcher()
    text = "Just <words> and {braces} [1].\n"
    text = f"<|channel|>final<|message|>{text}" if name == "openai" else text
    assert free.consume_tokens(list(text.encode())) and free.is_accepting()


def test_members_of_plain_objects_only() -> None:
    plain = dict(CallableTool.of("f", PLACE, is_strict=True).schema or {})
    members = members_in_order(plain)
    assert members is not None
    assert [(m.name, m.is_required) for m in members] == [
        ("city", True), ("days", True), ("exact", False),
    ]  # fmt: skip
    assert members_in_order({**plain, "minProperties": 3}) is None
    assert members_in_order({**plain, "required": []}) is None
    assert members_in_order({**plain, "additionalProperties": True}) is None
    assert members_in_order({"type": "object", "additionalProperties": False}) == []


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (None, {"type": "object", "additionalProperties": False}),
        ({}, {"type": "object"}),
        (
            {"properties": {"a": {}}},
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        ),
        (
            {"type": ["object", "null"], "properties": {}, "additionalProperties": True},
            {"type": "object", "properties": {}, "additionalProperties": True},
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}),
        (
            {"anyOf": [{"required": ["a"]}], "properties": {"a": {}}},
            {"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {}}},
        ),
    ],
)
def test_the_schema_that_is_enforced(parameters: Any, schema: Any) -> None:
    assert CallableTool.of("f", parameters, is_strict=True).schema == schema
