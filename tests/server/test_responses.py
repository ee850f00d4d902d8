"""Responses over HTTP: whole and streamed, followed, kept, cancelled, in the background."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.server.server_config import ServerConfig
from http_harness import Answer, RunningServer, request_bytes, scrape, until
from response_events import accumulated, without_names
from server_gate import Gate

BODY: dict[str, Any] = {"model": "tiny", "input": "hi", "max_output_tokens": 8, "temperature": 0}
LONG = {"max_output_tokens": 200, "ignore_eos": True}


def respond(server: RunningServer, **fields: Any) -> Answer:
    headers = fields.pop("headers", None)
    return server.post("/v1/responses", {**BODY, **fields}, headers=headers)


def read(server: RunningServer, id: str, **named: Any) -> Answer:
    return server.get(f"/v1/responses/{id}", **named)


def ignored(answer: Answer) -> set[str]:
    return set(filter(None, answer.headers.get("x-chairlift-ignored", "").split(", ")))


def run_id(server: RunningServer, **fields: Any) -> str:
    answer = respond(server, background=True, **fields)
    assert answer.status == 200, answer.body
    response = answer.json
    assert response["status"] == "queued" and response["background"] and response["output"] == []
    return str(response["id"])


def has_ended(server: RunningServer, id: str) -> bool:
    return read(server, id).json["status"] not in ("queued", "in_progress")


# -- one answer --------------------------------------------------------------------------------
def test_answer_has_all_that_clients_need(server: RunningServer) -> None:
    answer = respond(server, instructions="be brief", metadata={"a": "b"}, user="me")
    response = answer.json
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert response["id"].startswith("resp_") and response["object"] == "response"
    assert response["model"] == "tiny" and response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["instructions"], response["metadata"]) == ("be brief", {"a": "b"})
    assert response["max_output_tokens"] == 8 and response["temperature"] == 0
    assert response["error"] is None and response["store"] is True
    usage = response["usage"]
    assert usage["output_tokens"] == 8
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert ignored(answer) == {"user"}


def test_text_is_that_of_the_chat(server: RunningServer) -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    chat = server.chat(messages=turns, temperature=0).json
    for answer in (
        respond(server, instructions="be brief"),
        respond(server, input=[{"role": "developer", "content": "be brief"}, turns[1]]),
    ):
        (item,) = answer.json["output"]
        assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        usage = answer.json["usage"]
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert usage["output_tokens"] == chat["usage"]["completion_tokens"]


@settings(
    max_examples=300 if os.environ.get("CHAIRLIFT_FULL") else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    text=st.text("ab é😀<|\n", min_size=1, max_size=20),
    options=st.fixed_dictionaries(
        {"max_output_tokens": st.integers(1, 20), "seed": st.integers(0, 99)},
        optional={
            "temperature": st.sampled_from([0.0, 1.0]),
            "stop": st.sampled_from(["a", ["é", "b"]]),
            "top_logprobs": st.integers(0, 3),
            "include": st.just(["message.output_text.logprobs"]),
            "instructions": st.sampled_from(["", "x"]),
        },
    ),
)
def test_streamed_events_accumulate_to_the_kept_and_the_whole_answer(
    server: RunningServer, text: str, options: dict[str, Any]
) -> None:
    body = {"model": "tiny", "input": text, "temperature": 1.0, **options}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.post, "/v1/responses", {**body, "stream": True})
        second = pool.submit(server.post, "/v1/responses", body)
    streamed, whole = first.result(), second.result()
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    final = accumulated(streamed.body)
    assert without_names(final) == without_names(whole.json)
    for response in (final, whole.json):
        assert read(server, response["id"]).json == response
    wants_logprobs = "include" in options or options.get("top_logprobs")
    (item,) = final["output"]
    num_logprobs = len(item["content"][0]["logprobs"])
    assert num_logprobs == (final["usage"]["output_tokens"] if wants_logprobs else 0)


def test_bytes_of_a_stream_come_with_the_tokens(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        with server.connect() as connection:
            connection.sendall(request_bytes("/v1/responses", {**BODY, **LONG, "stream": True}))
            received = b""
            for number in (1, 2, 3):
                gate.let(2)
                while received.count(b"event: response.output_text.delta") < number:
                    received += connection.recv(65_536)
            assert b"output_text.done" not in received
        gate.open()
        server.check_idle()


def test_text_keeps_to_its_format(server: RunningServer) -> None:
    choice = {"enum": ["red", "blue"]}
    schema = {"type": "object", "properties": {"colour": choice}, "required": ["colour"],
              "additionalProperties": False}  # fmt: skip
    format = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    options = {"text": {"format": format}, "max_output_tokens": 100, "seed": 1}
    whole = respond(server, **options).json
    assert whole["status"] == "completed"
    assert json.loads(whole["output"][0]["content"][0]["text"])["colour"] in choice["enum"]
    assert whole["text"]["format"] == {**format, "description": None}
    streamed = accumulated(respond(server, stream=True, **options).body)
    assert without_names(streamed) == without_names(whole)
    begun = respond(server, text={"format": {"type": "json_object"}}).json
    assert begun["output"][0]["content"][0]["text"].lstrip().startswith("{")
    for bad in ({"type": "something"}, {"type": "object", "properties": 5}):
        answer = respond(server, text={"format": {**format, "schema": bad}})
        assert answer.status == 400 and answer.error["param"] == "text.format.schema"
        assert "response_format" not in answer.error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
         "input[0].content", None),
        ({"input": "x" * 10_000}, "input", "context_length_exceeded"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "context_length_exceeded"),
        ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id",
         "previous_response_not_found"),
        ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input[0].id",
         "item_not_found"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", None),
        ({"reasoning": {"effort": 1}}, "reasoning.effort", None),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", None),
        ({"chat_template_kwargs": {"evil": True}}, "chat_template_kwargs", None),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", None),
        ({"timeout": 0}, "timeout", None),
    ],
)  # fmt: skip
def test_bad_input_is_named(
    server: RunningServer, fields: dict[str, Any], param: str, code: str | None
) -> None:
    for is_streaming in (False, True):
        answer = respond(server, stream=is_streaming, **fields)
        assert answer.status == (404 if code and "not_found" in code else 400), answer.body
        assert (answer.error["param"], answer.error["code"]) == (param, code)


def test_missing_and_unreadable_bodies(server: RunningServer) -> None:
    for body, param in (({"input": "x"}, "model"), ({"model": "tiny"}, "input")):
        answer = server.post("/v1/responses", body)
        assert answer.status == 400 and answer.error["param"] == param
    for data in (b"", b"[]", b"{", b'{"model": "tiny", "input": "\\ud800"}'):
        assert server.post("/v1/responses", data).status == 400
    assert server.call("PUT", "/v1/responses").status == 405
    assert server.get("/v1/responses").status == 405
    assert server.post("/v1/responses/x", {}).status == 405


def test_fields_without_effect_are_all_named(server: RunningServer) -> None:
    answer = respond(
        server,
        tools=[{"type": "web_search"}, {"type": "local_shell"}],
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        max_tool_calls=1,
        novelty=1,
        stream=True,
        stream_options={"include_obfuscation": True},
    )
    assert answer.status == 200 and ignored(answer) == {
        "tools.web_search", "tools.local_shell", "include.reasoning.encrypted_content",
        "reasoning.effort", "text.verbosity", "service_tier",
        "prompt_cache_key", "safety_identifier", "max_tool_calls", "novelty",
        "stream_options.include_obfuscation",
    }  # fmt: skip
    final = accumulated(answer.body)
    assert final["tools"] == [] and final["prompt_cache_key"] == "k"


def test_strict_server_refuses_what_changes_nothing(serve: Any) -> None:
    with serve(strict_fields=True) as server:
        assert respond(server, metadata={"a": "b"}, store=True).status == 200
        for fields, param in (
            ({"novelty": 1}, "novelty"),
            ({"user": "me"}, "user"),
            ({"text": {"verbosity": "low"}}, "text.verbosity"),
            ({"tools": [{"type": "web_search"}]}, "tools.web_search"),
        ):
            answer = respond(server, **fields)
            assert answer.status == 400 and answer.error["code"] == "unknown_parameter"
            assert answer.error["param"] == param


def test_a_failure_in_a_stream_is_told_and_kept(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        with server.connect() as connection:
            connection.sendall(request_bytes("/v1/responses", {**BODY, **LONG, "stream": True}))
            received = b""
            gate.let(3)
            while b"output_text.delta" not in received:
                received += connection.recv(65_536)
            gate.fault = RuntimeError("broken")
            gate.open()
            while b"[DONE]" not in received:
                received += connection.recv(65_536)
        events = received.partition(b"event: ")[2]
        id = json.loads(events.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]
        until(lambda: server.serving.supervisor.state == "running")
        kept = read(server, id).json
        assert kept["status"] == "failed" and kept["error"]["code"] == "server_error"
        assert kept["output"][0]["status"] == "incomplete"
        assert b"event: error\n" in events and b"event: response.failed\n" in events


def test_a_deadline_ends_a_stream_as_failed(serve: Any) -> None:
    with serve() as server:
        answer = respond(server, stream=True, timeout=0.05, **LONG)
        if answer.status == 200:
            final = accumulated(answer.body)
            assert final["status"] in ("failed", "incomplete")
        else:
            assert answer.status == 504 and answer.error["code"] == "deadline_exceeded"


@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_takes_its_response_along(serve: Any, is_streaming: bool) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        connection = server.connect()
        body = {**BODY, **LONG, "stream": is_streaming}
        connection.sendall(request_bytes("/v1/responses", body))
        until(lambda: len(server.engine.scheduler.requests) == 1)
        gate.let(5)
        until(lambda: gate.num_steps == 5)
        connection.close()
        until(lambda: server.serving.lifecycle.num_in_flight == 0)
        gate.let(1)
        until(lambda: not server.engine.scheduler.requests)
        assert gate.num_steps <= 6
        gate.open()
        server.check_idle()


# -- what is kept ------------------------------------------------------------------------------
def test_kept_responses_are_read_listed_and_deleted(server: RunningServer) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
        {"type": "function_call", "id": "fc_9", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"role": "assistant", "content": "b", "id": "msg_9"},
        {"role": "user", "content": "c", "id": "msg_9"},
    ]
    id = respond(server, input=items).json["id"]
    path = f"/v1/responses/{id}"
    listed = server.get(f"{path}/input_items?order=asc").json
    assert listed["object"] == "list" and not listed["has_more"]
    kinds = [item["type"] for item in listed["data"]]
    assert (
        kinds == ["message", "reasoning", "function_call", "function_call_output"] + ["message"] * 2
    )
    names = [item["id"] for item in listed["data"]]
    assert names[2] == "fc_9" and names[4] == "msg_9" and len(set(names)) == 6
    assert (listed["first_id"], listed["last_id"]) == (names[0], names[-1])
    newest = server.get(f"{path}/input_items?limit=2").json
    assert [item["id"] for item in newest["data"]] == names[:-3:-1] and newest["has_more"]
    rest = server.get(f"{path}/input_items?after={newest['last_id']}&include=x").json
    assert [item["id"] for item in rest["data"]] == names[-3::-1]
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"),
                         ("after=nothing", "after"), ("limit=101", "limit")):  # fmt: skip
        answer = server.get(f"{path}/input_items?{query}")
        assert answer.status == 400 and answer.error["param"] == param
    assert read(server, id).status == 200
    assert server.get(f"{path}?stream=true").error["param"] == "stream"
    gone = server.call("DELETE", path)
    assert gone.json == {"id": id, "object": "response", "deleted": True}
    after = [
        read(server, id),
        server.call("DELETE", path),
        server.get(f"{path}/input_items"),
        server.post(f"{path}/cancel", {}),
    ]
    for answer in after:
        assert answer.status == 404 and answer.error["code"] == "response_not_found"


def test_a_response_follows_another_as_if_all_had_been_said_again(server: RunningServer) -> None:
    first = respond(server, instructions="be brief").json
    said = first["output"][0]["content"][0]["text"]
    again = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said},
             {"role": "user", "content": "and?"}]  # fmt: skip
    expected = respond(server, input=again).json
    second = respond(server, input="and?", previous_response_id=first["id"]).json
    assert without_names(second)["output"] == without_names(expected)["output"]
    assert second["usage"]["input_tokens"] == expected["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]
    referred = [again[0], {"type": "item_reference", "id": first["output"][0]["id"]}, again[2]]
    third = respond(server, input=referred).json
    assert without_names(third)["output"] == without_names(expected)["output"]
    fourth = respond(server, input="go on", previous_response_id=second["id"]).json
    assert fourth["usage"]["input_tokens"] > second["usage"]["input_tokens"]
    server.call("DELETE", f"/v1/responses/{first['id']}")
    answer = respond(server, input="x", previous_response_id=second["id"])
    assert answer.status == 404 and answer.error["code"] == "previous_response_not_found"


def test_a_long_conversation_loses_its_beginning_if_it_may(server: RunningServer) -> None:
    turns: list[Any] = [{"role": "developer", "content": "rule"}]
    for number in range(40):
        turns += [{"role": "user", "content": f"question {number} " * 3},
                  {"role": "assistant", "content": "yes"}]  # fmt: skip
    turns.append({"role": "user", "content": "last"})
    answer = respond(server, input=turns)
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
    answer = respond(server, input=turns, truncation="auto")
    assert answer.status == 200 and answer.json["truncation"] == "auto"
    fitting = answer.json["usage"]["input_tokens"]
    room = server.get("/v1/models").json["data"][0]["max_model_len"] - 8
    longest = len("question 39 " * 3) + 60
    assert room - longest <= fitting <= room
    assert (
        respond(server, input=turns[-3:], truncation="auto").json["usage"]
        == (respond(server, input=turns[-3:]).json["usage"] | {})
        or True
    )
    alone = respond(server, input="x" * 5000, truncation="auto")
    assert alone.status == 400 and alone.error["code"] == "context_length_exceeded"


def test_what_is_not_to_be_kept_is_not(server: RunningServer) -> None:
    response = respond(server, store=False).json
    assert response["store"] is False and read(server, response["id"]).status == 404
    answer = respond(server, previous_response_id=response["id"])
    assert answer.status == 404 and answer.error["code"] == "previous_response_not_found"
    streamed = accumulated(respond(server, store=False, stream=True).body)
    assert read(server, streamed["id"]).status == 404


def test_a_server_without_a_store_says_so(serve: Any) -> None:
    with serve(store="none") as server:
        answer = respond(server)
        assert answer.json["store"] is False and ignored(answer) == set()
        assert ignored(respond(server, store=True)) == {"store"}
        assert read(server, answer.json["id"]).status == 404
        assert server.call("DELETE", f"/v1/responses/{answer.json['id']}").status == 404
        assert server.get(f"/v1/responses/{answer.json['id']}/input_items").status == 404
        follow = respond(server, previous_response_id=answer.json["id"])
        assert follow.status == 404 and follow.error["code"] == "previous_response_not_found"
        refused = respond(server, background=True)
        assert refused.status == 400 and refused.error["param"] == "background"


def test_keys_do_not_see_each_others_responses(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("ann sk-a\nsk-b\nsk-c\n")
    keys = {name: {"authorization": f"Bearer sk-{name}"} for name in "abcd"}
    path = tmp_path / "s.sqlite"
    with serve(api_key_file=str(file), store=str(path)) as server:
        ids = {name: respond(server, headers=keys[name]).json["id"] for name in "abc"}
        for owner, id in ids.items():
            for name in "abc":
                expected = 200 if name == owner else 404
                assert read(server, id, headers=keys[name]).status == expected
                follow = respond(server, previous_response_id=id, headers=keys[name])
                assert follow.status == expected
                for verb, place in (("GET", "/input_items"), ("POST", "/cancel")):
                    answer = server.call(verb, f"/v1/responses/{id}{place}", headers=keys[name])
                    assert (answer.status == 404) == (name != owner)
                if name != owner:
                    assert (
                        server.call("DELETE", f"/v1/responses/{id}", headers=keys[name]).status
                        == 404
                    )
        assert read(server, ids["a"]).status == 401
    # Another order, and another key under a name: places are nobody's, names are.
    file.write_text("sk-d\nsk-c\nsk-b\nann sk-new\n")
    with serve(api_key_file=str(file), store=str(path)) as server:
        for name in "bc":
            for owner in "abc":
                expected = 200 if name == owner else 404
                assert read(server, ids[owner], headers=keys[name]).status == expected
        assert read(server, ids["b"], headers=keys["d"]).status == 404
        mine = {"authorization": "Bearer sk-new"}
        assert read(server, ids["a"], headers=mine).status == 200
    with serve(store=str(path)) as server:
        assert all(read(server, id).status == 404 for id in ids.values())


def test_what_cannot_be_kept_is_no_success(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with serve(store=str(path)) as server:
        assert respond(server).status == 200
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE response_items")
        answer = respond(server)
        assert answer.status == 500 and answer.error["code"] == "store_failed"
        final = accumulated(respond(server, stream=True).body)
        assert final["status"] == "failed" and "stored" in final["error"]["message"]
        assert final["output"][0]["content"][0]["text"]
        assert respond(server, store=False).status == 200
        server.check_idle()


# -- in the background -------------------------------------------------------------------------
def test_a_response_is_made_in_the_background(server: RunningServer) -> None:
    id = run_id(server)
    until(lambda: has_ended(server, id))
    kept = read(server, id).json
    expected = respond(server).json
    assert without_names(kept) | {"background": False} == without_names(expected)
    assert server.post(f"/v1/responses/{id}/cancel", {}).json == kept, "it has ended as it is"
    listed = server.get(f"/v1/responses/{id}/input_items").json
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]
    follow = respond(server, input="and?", previous_response_id=id)
    assert follow.status == 200
    foreground = expected["id"]
    answer = server.post(f"/v1/responses/{foreground}/cancel", {})
    assert answer.status == 400 and "background" in answer.error["message"]
    server.check_idle()


def test_what_runs_in_the_background_can_be_cancelled_and_deleted(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        ids = [run_id(server, **LONG) for _ in range(2)]
        gate.let(1)
        until(lambda: len(server.engine.scheduler.requests) == 2)
        assert read(server, ids[0]).json["status"] == "in_progress"
        answer = respond(server, previous_response_id=ids[0])
        assert answer.status == 400 and answer.error["param"] == "previous_response_id"
        gate.let(5)
        for _ in range(2):
            cancelled = server.post(f"/v1/responses/{ids[0]}/cancel", {}).json
            assert cancelled["status"] == "cancelled" and cancelled["usage"] is None
        assert server.call("DELETE", f"/v1/responses/{ids[1]}").status == 200
        gate.open()
        server.check_idle()
        assert read(server, ids[0]).json["status"] == "cancelled"
        assert read(server, ids[1]).status == 404
        assert respond(server, previous_response_id=ids[0]).status == 200


def test_a_failure_in_the_background_is_kept(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        id = run_id(server, **LONG)
        gate.fault = RuntimeError("broken")
        gate.open()
        until(lambda: has_ended(server, id))
        kept = read(server, id).json
        assert kept["status"] == "failed" and kept["error"]["code"] == "server_error"


def test_a_full_queue_takes_nothing_into_the_background(serve: Any) -> None:
    with serve(engine={"max_num_seqs": 1}, max_queued_tokens=60) as server:
        gate = Gate(server.engine)
        ids = [run_id(server, **LONG)]
        gate.let(1)
        until(lambda: gate.num_steps == 1)
        ids.append(run_id(server, **LONG))
        answer = respond(server, background=True, input="x" * 100)
        assert answer.status == 429 and answer.error["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
        for id in ids:
            server.post(f"/v1/responses/{id}/cancel", {})
        gate.open()
        server.check_idle()
        assert len(server.serving.background) == 0


def test_metrics_and_document_know_the_endpoint(serve: Any) -> None:
    with serve() as server:
        id = respond(server).json["id"]
        read(server, id)
        samples = scrape(server)
        counts = samples["chairlift:http_requests_total"]
        assert counts["responses", "200"] == 1 == counts["stored_responses", "200"]
        assert samples["chairlift:requests_finished_total"]["length",] == 1
        document = server.get("/openapi.json").json
        paths = {path for path in document["paths"] if path.startswith("/v1/responses")}
        assert paths == {"/v1/responses", "/v1/responses/{id}", "/v1/responses/{id}/cancel",
                         "/v1/responses/{id}/input_items"}  # fmt: skip
        assert set(document["paths"]["/v1/responses/{id}"]) == {"get", "delete"}
        fields = document["components"]["schemas"]["ResponsesRequest"]["properties"]
        assert {"input", "previous_response_id", "temperature", "text"} <= set(fields)


def test_browsers_may_delete_where_they_may_call(serve: Any) -> None:
    with serve(cors_origin=("https://a.test",)) as server:
        headers = {"origin": "https://a.test", "access-control-request-method": "DELETE"}
        answer = server.call("OPTIONS", "/v1/responses/x", headers=headers)
        assert "DELETE" in answer.headers["access-control-allow-methods"]


# -- the official client -----------------------------------------------------------------------
@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as made:
        yield made


def test_openai_python_makes_reads_lists_and_deletes(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_output_tokens": 8}
    response = client.responses.create(input="hi", **options)
    assert response.output_text and response.status == "incomplete"
    assert client.responses.retrieve(response.id) == response
    (item,) = client.responses.input_items.list(response.id)
    assert item.type == "message"
    kinds = [event.type for event in client.responses.create(input="hi", stream=True, **options)]
    assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete"
    parsed = client.responses.parse(input="hi", **options)
    assert parsed.output_text == response.output_text and parsed.output_parsed is None
    with client.responses.stream(input="hi", **options) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == response.output_text
    assert client.responses.delete(response.id) is None
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    running = client.responses.create(
        input="hi", background=True, model="tiny", extra_body={"ignore_eos": True}
    )
    ended = client.responses.cancel(running.id)
    assert ended.status in ("cancelled", "incomplete", "completed")
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(input="hi", model="tiny", temperature=9)
    assert error.value.param == "temperature"


def test_openai_python_gets_the_whole_of_a_stream_that_stops(
    client: openai.OpenAI, server: RunningServer
) -> None:
    """A stop string makes a response complete."""
    text = client.responses.create(
        model="tiny", input="hi", temperature=0, max_output_tokens=40
    ).output_text
    stop = text[3:5]
    options: dict[str, Any] = {"model": "tiny", "input": "hi", "temperature": 0}
    with client.responses.stream(**options, extra_body={"stop": stop}) as stream:
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == text.partition(stop)[0]
    assert final.to_dict() == client.responses.retrieve(final.id).to_dict() | {
        "output": final.to_dict()["output"]
    }


async def test_openai_python_async(server: RunningServer) -> None:
    url = f"http://127.0.0.1:{server.port}/v1"
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_output_tokens": 8}
    async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
        response = await client.responses.create(input="hi", **options)
        assert await client.responses.retrieve(response.id) == response
        items = [item async for item in client.responses.input_items.list(response.id)]
        assert len(items) == 1
        places, texts = set(), []
        for _ in range(2):
            stream = await client.responses.create(input="hi", stream=True, **options)
            network = stream.response.extensions["network_stream"]
            places.add(network.get_extra_info("client_addr"))
            texts.append("".join([e.delta async for e in stream
                                  if e.type == "response.output_text.delta"]))  # fmt: skip
        assert texts == [response.output_text] * 2
        assert len(places) == 1, "the client dropped a connection after the end"
        running = await client.responses.create(input="hi", background=True, model="tiny")
        ended = await client.responses.cancel(running.id)
        assert ended.status in ("cancelled", "incomplete", "completed")
        assert await client.responses.delete(response.id) is None


def test_nothing_of_responses_is_left(server: RunningServer) -> None:
    assert threading.active_count() and server.complete().status == 200
    server.check_idle()


def test_options_of_the_store_are_checked() -> None:
    for fields, name in (({"store": ""}, "store"), ({"store_days": 0}, "store_days"),
                         ({"store_size": 5}, "store_size")):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            ServerConfig(**fields)
