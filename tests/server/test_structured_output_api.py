"""Structured output over HTTP: every way to ask for it, and every way to ask for it badly."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from http_harness import Answer, RunningServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "n": {"type": "integer", "maximum": 99}},
    "required": ["mood"],
    "additionalProperties": False,
}
DEEP_ENUM = {"enum": [str(index) for index in range(50_000)]}
OVERLAPPING = {
    "allOf": [{"type": "string", "pattern": f"^(a|b)*{'.' * i}$"} for i in range(60)],
}


def send(server: RunningServer, path: str, fields: dict[str, Any]) -> Answer:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "temperature": 1.0, "seed": 7}
    asked["messages" if path == CHAT else "prompt"] = (
        [{"role": "user", "content": "hello"}] if path == CHAT else "abc"
    )
    return server.post(path, {**asked, **fields})


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


ASKING_FOR_SCHEMA: list[dict[str, Any]] = [
    {"response_format": schema_format(SCHEMA, strict=True)},
    {"response_format": schema_format(SCHEMA)},
    {"response_format": schema_format(SCHEMA, strict=False, description="moods")},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "auto"},
    {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("fields", ASKING_FOR_SCHEMA, ids=lambda fields: str(fields)[:60])
def test_a_schema_holds_however_it_comes(
    server: RunningServer, path: str, fields: dict[str, Any]
) -> None:
    answer = send(server, path, fields)
    value = json.loads(text_of(answer))
    assert value["mood"] in ("good", "bad") and set(value) <= {"mood", "n"}
    assert "x-chairlift-ignored" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("regex", "[ab]{3}", "[ab]{3}"),
        ("choice", ["yes", "no"], "yes|no"),
        ("grammar", 'start: "<" X ">"\nX: /[0-9]/', "<[0-9]>"),
        ("grammar", 'root ::= "<" [0-9] ">"', "<[0-9]>"),
    ],
)
def test_other_kinds_come_in_two_spellings(
    server: RunningServer, path: str, kind: str, value: Any, pattern: str
) -> None:
    for fields in ({"structured_outputs": {kind: value}}, {f"guided_{kind}": value}):
        assert re.fullmatch(pattern, text_of(send(server, path, fields)))


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        {"guided_json_object": True},
    ],
    ids=str,
)
def test_any_object(server: RunningServer, fields: dict[str, Any]) -> None:
    """A random model finds no end of it: what it says is the beginning of an object."""
    answer = send(server, CHAT, {**fields, "max_tokens": 20})
    content = answer.json["choices"][0]["message"]["content"]
    assert content.startswith("{") and not re.search(r"\n\s*\n", content)


def test_streams_and_choices(server: RunningServer) -> None:
    fields = {"response_format": schema_format(SCHEMA)}
    whole = text_of(send(server, CHAT, fields))
    events = send(server, CHAT, {**fields, "stream": True}).events[:-1]
    parts = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(parts) == whole
    answer = send(server, CHAT, {**fields, "n": 3})
    texts = [choice["message"]["content"] for choice in answer.json["choices"]]
    assert texts[0] == whole and all("mood" in json.loads(text) for text in texts)


# -- rows on response_format and grammars ------------------------------------------------------
BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": schema_format(123)}, "response_format.json_schema.schema"),
    ({"response_format": schema_format(None)}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "sound"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": False}, "response_format"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
    (
        {"response_format": {**schema_format(SCHEMA), "type": "json_object"}},
        "response_format.json_schema",
    ),
    ({"response_format": schema_format({"type": "something"})}, "response_format.json_schema"),
    ({"response_format": schema_format({"pattern": "((("})}, "response_format.json_schema"),
    ({"response_format": schema_format({"$ref": "http://127.0.0.1:9/x"})}, "response_format"),
    ({"response_format": schema_format({"$ref": "#/$defs/x"})}, "response_format"),
    ({"response_format": schema_format({"$ref": "#"})}, "response_format"),
    ({"response_format": schema_format({"enum": []})}, "response_format"),
    ({"response_format": schema_format(DEEP_ENUM)}, "response_format"),
    ({"response_format": schema_format({"minItems": 10**9})}, "response_format"),
    ({"response_format": schema_format({"multipleOf": 0})}, "response_format"),
    ({"response_format": schema_format({"allOf": [{"minLength": 1}] * 1000})}, "response_format"),
    ({"response_format": schema_format(OVERLAPPING)}, "response_format"),
    ({"response_format": schema_format({"not": {"type": "string"}})}, "response_format"),
    ({"response_format": schema_format(SCHEMA), "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "(("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": "x"}, "structured_outputs"),
    ({"structural_tag": {}}, "structural_tag"),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
    ({"guided_regex": "*("}, "guided_regex"),
    ({"guided_regex": "a" * 10**4}, "guided_regex"),
    ({"guided_grammar": "x"}, "guided_grammar"),
    ({"guided_grammar": "start: <|nobody|>"}, "guided_grammar"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": "yes"}, "guided_choice"),
    ({"guided_json": [1]}, "guided_json"),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "param"), BAD, ids=[str(fields)[:60] for fields, _ in BAD])
def test_bad_constraint_is_named(
    server: RunningServer, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = send(server, path, fields)
    assert answer.status == 400, answer.body
    error = answer.error
    assert error["type"] == "invalid_request_error"
    assert error["param"] is not None and error["param"].startswith(param)
    assert error["message"].startswith(
        next(iter(fields)).partition(".")[0]
    ) or "does not go" in str(error["message"])
    assert len(answer.body) < 2000


@pytest.mark.parametrize(
    "pattern", ["((a{1,500}){1,500}){1,500}", "(a+)+$", "(a|aa)+$", "(.*a.{400}){400}"]
)
def test_patterns_that_grow_are_bounded(server: RunningServer, pattern: str) -> None:
    answer = send(server, CHAT, {"guided_regex": pattern, "max_tokens": 20})
    assert answer.status in (200, 400)


def test_a_bad_schema_does_not_spoil_the_next(server: RunningServer) -> None:
    good = {"response_format": schema_format(SCHEMA)}
    first = text_of(send(server, CHAT, good))
    for schema in ({"type": "something"}, OVERLAPPING):
        assert send(server, CHAT, {"response_format": schema_format(schema)}).status == 400
        assert text_of(send(server, CHAT, good)) == first


def test_too_few_tokens_are_told_honestly(server: RunningServer) -> None:
    answer = send(server, CHAT, {"response_format": schema_format(SCHEMA), "max_tokens": 3})
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_options_that_leave_no_token_are_the_clients_mistake(server: RunningServer) -> None:
    for fields in ({"min_tokens": 50}, {"min_tokens": 50, "stream": True}):
        answer = send(server, CHAT, {"guided_choice": ["a"], **fields})
        error = answer.error if answer.status != 200 else answer.events[-2]["error"]
        assert error["code"] == "grammar_failed" and "min_tokens" in error["message"]
        assert error["param"] == "structured_outputs"


def test_a_long_compilation_keeps_nobody_waiting(server: RunningServer) -> None:
    """While grammars are tried that never end, texts are tokenized, and known grammars used."""
    known = {"guided_choice": ["yes", "no"]}
    plain = [send(server, CHAT, {"max_tokens": 5}), send(server, CHAT, known)]
    with ThreadPoolExecutor(10) as pool:
        hostile = [
            pool.submit(send, server, CHAT, {"guided_json": {**OVERLAPPING, "title": str(index)}})
            for index in range(3)
        ]
        seen = [pool.submit(send, server, CHAT, fields) for fields in ({"max_tokens": 5}, known)]
        for before, after in zip(plain, seen, strict=True):
            assert after.result().json["choices"] == before.json["choices"]
        assert not all(future.done() for future in hostile)
        assert [future.result().status for future in hostile] == [400] * 3
