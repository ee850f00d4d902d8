"""POST /v1/messages and count_tokens over real sockets: answers, streams, errors, aborts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dialect_answers import message_of, named_events, said_by
from http_harness import Answer, RunningServer, read_all, request_bytes, until
from server_gate import Gate

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def ask(server: RunningServer, path: str = PATH, **fields: Any) -> Answer:
    headers = fields.pop("headers", None)
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "messages": HI}
    if path == COUNT:
        body = {"model": "tiny", "messages": HI}
    return server.post(path, {**body, **fields}, headers=headers)


def fault(answer: Answer) -> dict[str, Any]:
    """The error of an answer that must be one, in the shape that it must have."""
    assert answer.status >= 400, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"type", "error"} and answer.json["type"] == "error"
    error: dict[str, Any] = answer.json["error"]
    assert set(error) == {"type", "message"}
    return error


def ignored(answer: Answer) -> set[str]:
    return set(filter(None, answer.headers.get("x-chairlift-ignored", "").split(", ")))


# -- answers -----------------------------------------------------------------------------------
def test_message_says_what_a_chat_completion_says(server: RunningServer) -> None:
    answer = ask(server)
    assert answer.status == 200 and answer.headers["request-id"] == answer.headers["x-request-id"]
    message = answer.json
    assert message["id"].startswith("msg_") and message["model"] == "tiny"
    assert (message["type"], message["role"]) == ("message", "assistant")
    chat = server.chat("hi", temperature=0).json
    assert said_by(message) == chat["choices"][0]["message"]["content"]
    assert message["stop_reason"] == "max_tokens" and message["stop_sequence"] is None
    usage = message["usage"]
    assert usage["output_tokens"] == chat["usage"]["completion_tokens"] == 8
    assert (
        usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    )
    assert usage["cache_creation_input_tokens"] == 0


def test_stream_tells_the_same_message_in_order(server: RunningServer) -> None:
    whole = ask(server).json
    answer = ask(server, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = named_events(answer.body)
    assert [event["type"] for event in events[:2]] == ["message_start", "content_block_start"]
    streamed = message_of(events)
    for key in ("content", "stop_reason", "stop_sequence", "model", "role"):
        expected = whole[key]
        if key == "content":
            expected = [{k: v for k, v in block.items() if v is not None} for block in expected]
        assert streamed[key] == expected
    usage = streamed["usage"]
    assert usage["cache_read_input_tokens"] > 0, "the prompt had been there before"
    assert usage["output_tokens"] == whole["usage"]["output_tokens"]


def test_stop_sequence_is_told(server: RunningServer) -> None:
    text = said_by(ask(server).json)
    stop = text[2:4]
    for is_streaming in (False, True):
        answer = ask(server, stop_sequences=["never there", stop], stream=is_streaming)
        message = message_of(named_events(answer.body)) if is_streaming else answer.json
        assert said_by(message) == text.partition(stop)[0]
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)


def test_answer_that_reaches_the_end_of_the_context(server: RunningServer) -> None:
    """Clients ask for more than any context holds."""
    prompt = [{"role": "user", "content": "a" * 200}]
    answer = ask(server, messages=prompt, max_tokens=200_000)
    assert answer.json["stop_reason"] in ("model_context_window_exceeded", "end_turn")
    whole = server.chat("a" * 200, temperature=0, max_tokens=None).json
    assert said_by(answer.json) == whole["choices"][0]["message"]["content"]


def test_counted_tokens_are_those_of_the_message(server: RunningServer) -> None:
    for fields in (
        {},
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"messages": [*HI, {"role": "assistant", "content": "ho"}, *HI]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 3}]},
    ):
        count = ask(server, COUNT, **fields).json
        usage = ask(server, **fields).json["usage"]
        assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_answer_follows_a_schema(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    format = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    for fields in ({"output_config": {"format": format}}, {"output_format": format}):
        whole = ask(server, max_tokens=64, **fields).json
        assert whole["stop_reason"] == "end_turn" and json.loads(said_by(whole))["n"] in (1, 2)
        events = named_events(ask(server, max_tokens=64, stream=True, **fields).body)
        assert said_by(message_of(events)) == said_by(whole)


def test_text_in_blocks_is_text(server: RunningServer) -> None:
    blocks = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    answer = ask(server, messages=[{"role": "user", "content": blocks}])
    assert said_by(answer.json) == said_by(ask(server).json)
    assert ignored(answer) == {"cache_control"}


def test_fields_without_effect_are_named_once(server: RunningServer) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    answer = ask(
        server,
        metadata={"user_id": "u"},
        service_tier="auto",
        tools=[search],
        context_management={"edits": []},
        cache_control={"type": "ephemeral"},
        system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        thinking={"type": "enabled", "budget_tokens": 1024},
        max_tokens=1025,
        stop_sequences=[" "],
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "anything"},
    )
    assert answer.status == 200
    assert ignored(answer) == {
        "metadata", "service_tier", "tools.web_search_20250305", "context_management",
        "cache_control", "thinking", "thinking.budget_tokens",
    }  # fmt: skip
    assert len(answer.headers["x-chairlift-ignored"].split(", ")) == 7
    assert ignored(ask(server)) == set()


def test_strict_server_refuses_them(serve: Any) -> None:
    with serve(strict_fields=True) as server:
        for path in (PATH, COUNT):
            error = fault(ask(server, path, novelty=1))
            assert error["type"] == "invalid_request_error" and "novelty" in error["message"]
        assert "cache_control" in fault(ask(server, cache_control={}))["message"]
        assert ask(server).status == 200


# -- bad input ---------------------------------------------------------------------------------
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "max_tokens missing": ({"max_tokens": None}, "max_tokens is required"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens a text": ({"max_tokens": "8"}, "max_tokens"),
    "max_tokens true": ({"max_tokens": True}, "max_tokens"),
    "max_tokens huge": ({"max_tokens": 10**30}, "max_tokens"),
    "messages missing": ({"messages": None}, "messages is required"),
    "messages empty": ({"messages": []}, "messages"),
    "messages a text": ({"messages": "hi"}, "messages"),
    "message a text": ({"messages": ["hi"]}, "messages[0]"),
    "role unknown": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "content missing": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "content empty": ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    "content number": ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    "prefill": ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages must not"),
    "model missing": ({"model": None}, "model is required"),
    "model a list": ({"model": ["tiny"]}, "model"),
    "temperature": ({"temperature": 1.5}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "top_k": ({"top_k": -1}, "top_k"),
    "stop_sequences": ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
    "stop_sequences empty text": ({"stop_sequences": [""]}, "stop_sequences"),
    "stop_sequences numbers": ({"stop_sequences": [1]}, "stop_sequences"),
    "stream": ({"stream": "yes"}, "stream"),
    "system number": ({"system": 1}, "system"),
    "system image": ({"system": [{"type": "image"}]}, "system[0]"),
    "tool without schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    "tool without name": ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    "tools a text": ({"tools": "f"}, "tools"),
    "tool_choice a text": ({"tool_choice": "auto"}, "tool_choice"),
    "tool_choice unknown": ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    "tool_choice without a name": ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    "tool_choice of nobody": (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name",
    ),
    "tool_choice without tools": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "thinking a flag": ({"thinking": True}, "thinking"),
    "thinking unknown": ({"thinking": {"type": "deep"}}, "thinking.type"),
    "budget missing": ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    "budget small": (
        {"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens",
    ),
    "effort": ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    "format": ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type"),
    "schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "sound"}}}},
        "output_config.format.schema",
    ),
    "schema in its older place": (
        {"output_format": {"type": "json_schema", "schema": {"type": "sound"}}},
        "output_format.schema",
    ),
    "metadata": ({"metadata": 1}, "metadata"),
    "service_tier": ({"service_tier": "gold"}, "service_tier"),
    "mcp_servers": ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
    "container": ({"container": "c"}, "container"),
    "too long": ({"messages": [{"role": "user", "content": "a" * 5000}]}, "prompt"),
}  # fmt: skip
BLOCKS: dict[str, tuple[str, Any, str]] = {
    "no object": ("user", "x", "content[0] must be an object"),
    "no type": ("user", {}, "content[0].type"),
    "type a number": ("user", {"type": 1}, "content[0].type"),
    "text without text": ("user", {"type": "text"}, "content[0].text"),
    "image": ("user", {"type": "image", "source": {}}, "content[0] is of type 'image'"),
    "document": ("user", {"type": "document", "source": {}}, "content[0] is of type 'document'"),
    "search result": ("user", {"type": "search_result"}, "content[0] is of type 'search_result'"),
    "call by the user": ("user", {"type": "tool_use"}, "content[0] is of type 'tool_use'"),
    "result without id": ("user", {"type": "tool_result"}, "content[0].tool_use_id"),
    "result of nothing": (
        "user", {"type": "tool_result", "tool_use_id": "t"}, "content[0].tool_use_id",
    ),
    "call without id": ("assistant", {"type": "tool_use", "name": "f"}, "content[0].id"),
    "call without name": ("assistant", {"type": "tool_use", "id": "t"}, "content[0].name"),
    "call without input": (
        "assistant", {"type": "tool_use", "id": "t", "name": "f"}, "content[0].input",
    ),
    "call with a text": (
        "assistant", {"type": "tool_use", "id": "t", "name": "f", "input": "x"}, "content[0].input",
    ),
    "thinking without text": ("assistant", {"type": "thinking"}, "content[0].thinking"),
    "result by the assistant": ("assistant", {"type": "tool_result"}, "is of type 'tool_result'"),
    "image in the system": ("system", {"type": "image"}, "content[0] is of type 'image'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def control_text(server: RunningServer) -> str:
    return said_by(ask(server).json)


@pytest.fixture
def unharmed(server: RunningServer, control_text: str) -> Iterator[None]:
    yield
    assert said_by(ask(server).json) == control_text
    server.check_idle()


@pytest.mark.parametrize("name", BAD)
def test_bad_field_is_named(server: RunningServer, unharmed: None, name: str) -> None:
    fields, said = BAD[name]
    for is_streaming in (False, True):
        error = fault(ask(server, **{"stream": is_streaming, **fields}))
        assert error["type"] == "invalid_request_error" and said in error["message"], error


@pytest.mark.parametrize("name", BLOCKS)
def test_bad_block_is_named(server: RunningServer, unharmed: None, name: str) -> None:
    role, block, said = BLOCKS[name]
    turns = [*HI, {"role": role, "content": [block]}, *HI]
    for path in (PATH, COUNT):
        error = fault(ask(server, path, messages=turns))
        assert error["type"] == "invalid_request_error"
        assert "messages[1].content" in error["message"] and said in error["message"], error


def test_bad_part_of_a_result_is_named(server: RunningServer) -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    for content, said in (
        ([{"type": "image"}], "messages[2].content[0].content[0]"),
        (7, "messages[2].content[0].content"),
        ([7], "messages[2].content[0].content[0]"),
    ):
        result = {"type": "tool_result", "tool_use_id": "t", "content": content}
        turns = [
            *HI,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        assert said in fault(ask(server, messages=turns))["message"]


def test_bodies_that_are_no_json(server: RunningServer) -> None:
    headers = {"content-type": "application/json"}
    for data in (b"", b"{", b"[]", b'{"model": NaN}', b"\xff"):
        error = fault(server.post(PATH, data, headers=headers))
        assert error["type"] == "invalid_request_error"
    answer = server.post(PATH, b"{}", headers={"content-type": "text/plain"})
    assert answer.status == 415 and fault(answer)["type"] == "invalid_request_error"


def test_unknown_model_path_and_verb(server: RunningServer) -> None:
    for path in (PATH, COUNT):
        answer = ask(server, path, model="claude-sonnet-4-5")
        assert answer.status == 404 and fault(answer)["type"] == "not_found_error"
        assert "claude-sonnet-4-5" in fault(answer)["message"]
    assert server.get(PATH).status == 405 and fault(server.get(PATH))
    answer = server.post(PATH + "/batches", {})
    assert answer.status == 404 and fault(answer)["type"] == "not_found_error"


# -- keys, queue, faults -----------------------------------------------------------------------
def test_keys_in_both_forms_and_errors_in_the_dialect(serve: Any) -> None:
    with serve(api_key=("sk-right",)) as server:
        assert ask(server, headers={"x-api-key": "sk-right"}).status == 200
        assert ask(server, headers={"authorization": "Bearer sk-right"}).status == 200
        for headers in ({}, {"x-api-key": "sk-wrong"}):
            for path in (PATH, COUNT):
                answer = ask(server, path, headers=headers)
                assert answer.status == 401
                assert fault(answer)["type"] == "authentication_error"


def test_full_queue_and_draining_in_the_dialect(serve: Any) -> None:
    with serve(max_queued_requests=1, engine={"max_num_seqs": 1}) as server:
        gate = Gate(server.engine)
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(ask, server)
            until(lambda: server.serving.admission.num_waiting == 1)
            answer = ask(server)
            assert answer.status == 429 and fault(answer)["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
            server.serving.lifecycle.is_draining = True
            answer = ask(server)
            assert answer.status == 529 and fault(answer)["type"] == "overloaded_error"
            assert "retry-after" in answer.headers
            gate.open()
            assert running.result().status == 200


def test_error_within_a_stream_is_an_event(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        with ThreadPoolExecutor(1) as pool:
            streamed = pool.submit(ask, server, stream=True, max_tokens=100)
            gate.let(3)
            until(lambda: gate.num_steps == 3)
            gate.fault = RuntimeError("broken for the test")
            gate.open()
            *begun, last = named_events(streamed.result().body)
        assert begun[0]["type"] == "message_start"
        assert last["type"] == "error" and last["error"]["type"] == "overloaded_error"
        assert "broken" not in last["error"]["message"]


@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "whole"])
def test_client_that_goes_ends_its_message(serve: Any, is_streaming: bool) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        body = {"model": "tiny", "max_tokens": 200, "messages": HI, "stream": is_streaming}
        with server.connect() as connection:
            connection.sendall(request_bytes(PATH, body))
            gate.let(4)
            until(lambda: gate.num_steps == 4)
            connection.shutdown(socket.SHUT_RDWR)
        until(lambda: server.serving.lifecycle.num_in_flight == 0)
        gate.let(2)
        until(lambda: not server.engine.scheduler.has_requests)
        assert gate.num_steps <= 6
        gate.open()
        server.check_idle()


def test_stream_that_waits_gets_pings(serve: Any) -> None:
    with serve(ping_interval=0.05) as server:
        gate = Gate(server.engine)
        body = {"model": "tiny", "max_tokens": 2, "messages": HI, "stream": True}
        with server.connect() as connection:
            connection.sendall(request_bytes(PATH, body, headers="Connection: close\r\n"))
            seen = b""
            while seen.count(b'event: ping\ndata: {"type":"ping"}\n\n') < 2:
                seen += connection.recv(65_536)
            assert b"message_start" not in seen
            gate.open()
            seen += read_all(connection)
        assert seen.index(b"event: ping") < seen.index(b"event: message_start")
        assert b"event: message_stop" in seen


def test_requests_are_counted_under_their_own_names(serve: Any) -> None:
    with serve() as server:
        ask(server), ask(server, COUNT), ask(server, max_tokens=0)
        text = server.get("/metrics").body.decode()
        for endpoint, status in (("messages", 200), ("count_tokens", 200), ("messages", 400)):
            line = f'http_requests_total{{endpoint="{endpoint}",status="{status}"}} 1.0'
            assert line in text, endpoint


def test_openapi_document_has_both_dialects(server: RunningServer) -> None:
    document = server.get("/openapi.json").json
    paths, schemas = document["paths"], document["components"]["schemas"]
    assert {PATH, COUNT, "/api/chat", "/api/generate", "/api/tags", "/api/show"} <= set(paths)
    assert "max_tokens" in schemas["MessagesRequest"]["required"]
    lines = paths["/api/chat"]["post"]["responses"]["200"]["content"]
    assert "application/x-ndjson" in lines
    errors = paths[PATH]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    assert errors == {"$ref": "#/components/schemas/MessageError"}
    assert json.dumps(document)
