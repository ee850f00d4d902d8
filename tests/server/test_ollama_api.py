"""/api/* over real sockets: answers, lines, errors, aborts, and what clients ask about models."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dialect_answers import lines_of, text_of
from http_harness import Answer, RunningServer, request_bytes, until
from server_gate import Gate

CHAT, GENERATE = "/api/chat", "/api/generate"
HI = [{"role": "user", "content": "hi"}]
OPTIONS = {"temperature": 0, "num_predict": 8}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def ask(server: RunningServer, path: str = CHAT, **fields: Any) -> Answer:
    """An answer that is no stream, unless one is asked for."""
    headers = fields.pop("headers", None)
    options = {**OPTIONS, **fields.pop("options", {})}
    body = {"model": "tiny", "stream": False, "options": options}
    body |= {"messages": HI} if path == CHAT else {"prompt": "hi"}
    return server.post(path, {**body, **fields}, headers=headers)


def fault(answer: Answer) -> str:
    """The error of an answer that must be one, in the shape that it must have."""
    assert answer.status >= 400, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["error"] and isinstance(answer.json["error"], str)
    return str(answer.json["error"])


def context_of(server: RunningServer) -> int:
    """Tokens that its model's context holds."""
    return int(server.get("/v1/models").json["data"][0]["max_model_len"])


def ignored(answer: Answer) -> set[str]:
    return set(filter(None, answer.headers.get("x-chairlift-ignored", "").split(", ")))


# -- answers -----------------------------------------------------------------------------------
def test_chat_says_what_a_chat_completion_says(server: RunningServer) -> None:
    answer = ask(server).json
    completion = server.chat("hi", temperature=0).json
    assert answer["message"] == {
        "role": "assistant", "content": completion["choices"][0]["message"]["content"]
    }  # fmt: skip
    assert answer["model"] == "tiny" and answer["created_at"].endswith("Z")
    assert answer["done"] is True and answer["done_reason"] == "length"
    usage = completion["usage"]
    assert answer["prompt_eval_count"] == usage["prompt_tokens"]
    assert answer["eval_count"] == usage["completion_tokens"]
    assert all(isinstance(answer[name], int) for name in DURATIONS)
    parts = answer["prompt_eval_duration"] + answer["eval_duration"]
    assert answer["load_duration"] == 0 and 0 < parts <= answer["total_duration"]


def test_generate_is_a_conversation_of_one_turn(server: RunningServer) -> None:
    for system in ("", "Be brief."):
        turns = [{"role": "system", "content": system}] if system else []
        answer = ask(server, GENERATE, system=system).json
        assert answer["response"] == text_of(ask(server, messages=[*turns, *HI]).json)
        assert "message" not in answer and "context" not in answer


def test_raw_prompt_is_completed_as_it_is(server: RunningServer) -> None:
    answer = ask(server, GENERATE, raw=True, prompt="abc").json
    completion = server.complete("abc").json
    assert answer["response"] == completion["choices"][0]["text"]
    assert answer["prompt_eval_count"] == completion["usage"]["prompt_tokens"]
    assert answer["eval_count"] == 8


@pytest.mark.parametrize("path", [CHAT, GENERATE])
@pytest.mark.parametrize("raw", [True, False])
def test_lines_have_the_text_of_the_whole_answer(
    server: RunningServer, path: str, raw: bool
) -> None:
    fields = {"raw": raw} if path == GENERATE else {}
    whole = ask(server, path, **fields).json
    answer = ask(server, path, stream=True, **fields)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = lines_of(answer.body)
    assert "".join(map(text_of, lines)) == text_of(whole) and text_of(lines[-1]) == ""
    for key in ("done_reason", "prompt_eval_count", "eval_count", "model"):
        assert lines[-1][key] == whole[key]
    assert set(lines[-1]) == set(whole) and "done_reason" not in lines[0]


def test_stream_is_the_default(server: RunningServer) -> None:
    for path, prompt in ((CHAT, {"messages": HI}), (GENERATE, {"prompt": "hi"})):
        body = {"model": "tiny", "options": OPTIONS, **prompt}
        assert len(lines_of(server.post(path, body).body)) > 1


def test_options_reach_the_sampler(server: RunningServer) -> None:
    def chat(**options: Any) -> str:
        return str(server.chat("hi", **options).json["choices"][0]["message"]["content"])

    text = chat(temperature=0)
    assert text_of(ask(server, options={"stop": text[2:4]}).json) == text.partition(text[2:4])[0]
    assert text_of(ask(server, options={"num_predict": 3}).json) == chat(
        temperature=0, max_tokens=3
    )
    sampled: dict[str, Any] = {"temperature": 1.2, "seed": 5, "top_k": 40, "top_p": 0.9}
    sampled |= {"min_p": 0.01, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    ours, theirs = {"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}
    assert text_of(ask(server, options=sampled | ours).json) == chat(**sampled, **theirs)
    texts = {text_of(ask(server, options={**sampled, "seed": -1}).json) for _ in range(8)}
    assert len(texts) > 1, "a seed of -1 is any"


@pytest.mark.parametrize("num_predict", [-1, -2])
@pytest.mark.parametrize("fields", [{}, {"raw": True}])
def test_answer_as_long_as_the_context(
    server: RunningServer, num_predict: int, fields: dict[str, Any]
) -> None:
    answer = ask(server, GENERATE, options={"num_predict": num_predict}, **fields).json
    total = answer["prompt_eval_count"] + answer["eval_count"]
    assert total == context_of(server) or answer["done_reason"] == "stop"
    more = ask(server, GENERATE, options={"num_predict": 10**6}, **fields).json
    assert text_of(more) == text_of(answer)


def test_log_probabilities(server: RunningServer) -> None:
    chat = server.chat("hi", temperature=0, logprobs=True, top_logprobs=2).json
    expected = chat["choices"][0]["logprobs"]["content"]
    assert ask(server, logprobs=True, top_logprobs=2).json["logprobs"] == expected
    lines = lines_of(ask(server, stream=True, logprobs=True, top_logprobs=2).body)
    assert [entry for line in lines for entry in line.get("logprobs", [])] == expected
    raw = ask(server, GENERATE, raw=True, logprobs=True).json["logprobs"]
    assert len(raw) == 8 and raw[0]["top_logprobs"] == []


@pytest.mark.parametrize("fields", [{}, {"raw": True}], ids=["chat", "raw"])
def test_answer_in_a_format(server: RunningServer, fields: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    given = {"format": {**schema, "additionalProperties": False}, **fields}
    options = {"num_predict": 64}
    whole = ask(server, GENERATE, options=options, **given).json
    assert whole["done_reason"] == "stop" and json.loads(text_of(whole))["n"] in (1, 2)
    lines = lines_of(ask(server, GENERATE, options=options, stream=True, **given).body)
    assert "".join(map(text_of, lines)) == text_of(whole)
    assert text_of(ask(server, GENERATE, format="json", **fields).json).lstrip().startswith("{")


def test_nothing_to_say_is_a_request_to_load(server: RunningServer) -> None:
    for path, empty in (
        (CHAT, {"messages": []}), (CHAT, {"messages": None}),
        (GENERATE, {"prompt": ""}), (GENERATE, {"prompt": None, "keep_alive": "10m"}),
    ):  # fmt: skip
        for is_streaming in (True, False):
            answer = ask(server, path, stream=is_streaming, **empty)
            assert answer.status == 200 and text_of(answer.json) == ""
            assert answer.json["done"] is True and answer.json["done_reason"] == "load"
            assert "eval_count" not in answer.json
            assert ask(server, path, model="other", **empty).status == 404


@pytest.mark.parametrize("keep_alive", [0, "0", "0s", "0m", 0.0])
def test_model_is_never_unloaded(server: RunningServer, keep_alive: Any) -> None:
    answer = ask(server, GENERATE, prompt="", keep_alive=keep_alive)
    assert answer.status == 400 and "keep_alive" in fault(answer)
    assert ignored(ask(server, keep_alive=keep_alive)) == {"keep_alive"}


def test_fields_without_effect_are_named(server: RunningServer) -> None:
    answer = ask(
        server,
        keep_alive="5m",
        think=False,
        novelty=1,
        options={"num_ctx": context_of(server), "num_thread": 2, "mirostat": 0, "typical_p": 1.0},
        messages=[{"role": "user", "content": "hi", "mood": 1}],
    )
    assert answer.status == 200
    assert ignored(answer) == {
        "keep_alive", "novelty", "options.num_ctx", "options.num_thread", "messages.mood"
    }  # fmt: skip
    assert ignored(ask(server)) == set()


def test_strict_server_refuses_unknown_options(serve: Any) -> None:
    with serve(strict_fields=True) as server:
        answer = ask(server, options={"num_thread": 2})
        assert answer.status == 400 and "options.num_thread" in fault(answer)
        assert ask(server).status == 200


def test_names_with_and_without_a_tag(serve: Any) -> None:
    with serve(served_model_name=("tiny", "org/other:q4", "third:latest")) as server:
        listed = [model["name"] for model in server.get("/api/tags").json["models"]]
        assert listed == ["tiny:latest", "org/other:q4", "third:latest"]
        for name in [*listed, "tiny", "third"]:
            answer = ask(server, model=name)
            assert answer.status == 200 and answer.json["model"] == name
            assert server.post("/api/show", {"model": name}).status == 200
        for name in ("org/other", "tiny:q4", "Tiny", "tiny:latest:latest"):
            assert ask(server, model=name).status == 404, name
            assert server.post("/api/show", {"name": name}).status == 404


# -- what clients ask about models -------------------------------------------------------------
def test_models_are_listed_as_ollama_does(server: RunningServer) -> None:
    (model,) = server.get("/api/tags").json["models"]
    assert model["model"] == "tiny:latest" and model["size"] > 0 and len(model["digest"]) == 64
    details = model["details"]
    assert details["format"] == "safetensors" and details["family"] == "llama"
    assert details["parameter_size"].endswith("M")
    (running,) = server.get("/api/ps").json["models"]
    assert running["digest"] == model["digest"] and running["details"] == details
    assert running["context_length"] == context_of(server) and running["size_vram"] == 0
    assert server.get("/api/version").json == {"version": server.get("/version").json["version"]}


def test_show_tells_what_the_model_can_do(server: RunningServer) -> None:
    shown = server.post("/api/show", {"model": "tiny"}).json
    assert shown["template"] == server.get("/tokenizer_info").json["chat_template"]
    assert shown["model_info"]["llama.context_length"] == context_of(server)
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "completion" in shown["capabilities"] and "vision" not in shown["capabilities"]
    assert "thinking" not in shown["capabilities"]
    assert server.post("/api/show", {}).status == 400
    assert ignored(server.post("/api/show", {"model": "tiny", "verbose": True})) == {"verbose"}


def test_server_is_found_at_its_root(server: RunningServer) -> None:
    answer = server.get("/")
    assert answer.status == 200 and answer.body == b"Chairlift is running"
    head = server.call("HEAD", "/")
    assert head.status == 200 and head.body == b""


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"),
        ("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", "/api/blobs/sha256:1"),
        ("HEAD", "/api/blobs/sha256:1"), ("GET", "/api/nothing"),
    ],
)  # fmt: skip
def test_store_of_models_is_not_there(server: RunningServer, method: str, path: str) -> None:
    answer = server.call(method, path, {"model": "x"})
    assert answer.status == 404
    if method != "HEAD":
        assert fault(answer)


# -- bad input ---------------------------------------------------------------------------------
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "model missing": (CHAT, {"model": None}, "model is required"),
    "model a number": (GENERATE, {"model": 1}, "model"),
    "messages a text": (CHAT, {"messages": "hi"}, "messages"),
    "message a text": (CHAT, {"messages": ["hi"]}, "messages[0]"),
    "role missing": (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
    "role unknown": (CHAT, {"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role"),
    "content a list": (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    "images": (CHAT, {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
    "images in generate": (GENERATE, {"images": ["aGk="]}, "images"),
    "arguments a text": (
        CHAT,
        {"messages": [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
        ]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    "tools a text": (CHAT, {"tools": "f"}, "tools"),
    "tool a text": (CHAT, {"tools": ["f"]}, "tools[0]"),
    "prompt a list": (GENERATE, {"prompt": ["a"]}, "prompt"),
    "stream a text": (CHAT, {"stream": "yes"}, "stream"),
    "format": (CHAT, {"format": "xml"}, "format"),
    "format of no schema": (CHAT, {"format": {"type": "sound"}}, "format"),
    "format true": (GENERATE, {"format": True}, "format"),
    "think": (CHAT, {"think": "deeply"}, "think"),
    "think of one that cannot": (CHAT, {"think": True}, "does not support thinking"),
    "think in generate": (GENERATE, {"think": "high"}, "does not support thinking"),
    "template": (GENERATE, {"template": "{{ .Prompt }}"}, "template"),
    "context": (GENERATE, {"context": [1, 2]}, "context"),
    "suffix": (GENERATE, {"suffix": "end"}, "suffix"),
    "raw and system": (GENERATE, {"raw": True, "system": "x"}, "system"),
    "raw and context": (GENERATE, {"raw": True, "context": [1]}, "context"),
    "keep_alive": (CHAT, {"keep_alive": "soon"}, "keep_alive"),
    "keep_alive true": (CHAT, {"keep_alive": True}, "keep_alive"),
    "top_logprobs alone": (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    "top_logprobs": (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "options a list": (CHAT, {"options": []}, "options"),
    "too long": (GENERATE, {"prompt": "a" * 5000}, "prompt"),
    "too long and raw": (GENERATE, {"prompt": "a" * 5000, "raw": True}, "prompt"),
}  # fmt: skip
BAD_OPTIONS: dict[str, Any] = {
    "temperature": -1, "top_k": -2, "top_p": 0, "min_p": 2, "seed": 2**63, "num_predict": 0,
    "stop": ["a"] * 5, "repeat_penalty": 0, "presence_penalty": 3, "frequency_penalty": -3,
    "num_ctx": 10**6, "mirostat": 1, "tfs_z": 0.5, "typical_p": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def control_text(server: RunningServer) -> str:
    return text_of(ask(server).json)


@pytest.fixture
def unharmed(server: RunningServer, control_text: str) -> Iterator[None]:
    yield
    assert text_of(ask(server).json) == control_text
    server.check_idle()


@pytest.mark.parametrize("name", BAD)
def test_bad_field_of_ollama_is_named(server: RunningServer, unharmed: None, name: str) -> None:
    path, fields, said = BAD[name]
    for is_streaming in (True, False):
        answer = server.post(path, bad_body(path, {"stream": is_streaming, **fields}))
        assert answer.status == 400 and said in fault(answer), answer.body


def bad_body(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "tiny", "options": OPTIONS}
    body |= {"messages": HI} if path == CHAT else {"prompt": "hi"}
    return body | fields


@pytest.mark.parametrize("name", BAD_OPTIONS)
@pytest.mark.parametrize("fields", [{}, {"raw": True}], ids=["chat", "raw"])
def test_bad_option_is_named(
    server: RunningServer, unharmed: None, name: str, fields: dict[str, Any]
) -> None:
    for value in (BAD_OPTIONS[name], {}, "much", True):
        answer = ask(server, GENERATE, options={name: value}, **fields)
        if name == "stop" and value == "much":
            continue
        assert answer.status == 400 and f"options.{name}" in fault(answer), answer.body


def test_ollama_bodies_that_are_no_json(server: RunningServer) -> None:
    headers = {"content-type": "application/json"}
    for path in (CHAT, GENERATE, "/api/show"):
        for data in (b"", b"{", b"[]", b'{"model": NaN}', b"\xff"):
            assert fault(server.post(path, data, headers=headers))
    assert server.post(CHAT, b"{}", headers={"content-type": "text/plain"}).status == 415


def test_a_body_as_curl_calls_it_unless_told_otherwise(server: RunningServer) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    body = b'{"model": "tiny", "prompt": "a", "stream": false, "options": {"num_predict": 2}}'
    assert server.post(GENERATE, body, headers=headers).json["done"] is True
    assert server.post("/v1/completions", body, headers=headers).status == 415
    foreign = {**headers, "origin": "http://elsewhere.example"}
    assert server.post(GENERATE, body, headers=foreign).status == 403


# -- keys, queue, faults -----------------------------------------------------------------------
def test_key_is_asked_for_in_the_dialect(serve: Any) -> None:
    with serve(api_key=("sk-right",)) as server:
        assert ask(server, headers={"authorization": "Bearer sk-right"}).status == 200
        for method, path in (("POST", CHAT), ("GET", "/api/tags"), ("GET", "/api/version")):
            answer = server.call(method, path, {} if method == "POST" else None)
            assert answer.status == 401 and "key" in fault(answer)
        assert server.get("/").status == 401


def test_full_queue_and_draining_of_ollama(serve: Any) -> None:
    with serve(max_queued_requests=1, engine={"max_num_seqs": 1}) as server:
        gate = Gate(server.engine)
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(ask, server)
            until(lambda: server.serving.admission.num_waiting == 1)
            answer = ask(server)
            assert answer.status == 429 and fault(answer)
            assert int(answer.headers["retry-after"]) >= 1
            server.serving.lifecycle.is_draining = True
            answer = ask(server)
            assert answer.status == 503 and fault(answer) and "retry-after" in answer.headers
            gate.open()
            assert running.result().status == 200


def test_error_within_lines_is_the_last_line(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        with ThreadPoolExecutor(1) as pool:
            streamed = pool.submit(ask, server, stream=True, options={"num_predict": 100})
            gate.let(3)
            until(lambda: gate.num_steps == 3)
            gate.fault = RuntimeError("broken for the test")
            gate.open()
            lines = [json.loads(line) for line in streamed.result().body.splitlines()]
        assert lines[0]["done"] is False and list(lines[-1]) == ["error"]
        assert "broken" not in lines[-1]["error"]


@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_ollama_client_that_goes_ends_its_request(
    serve: Any, path: str, is_streaming: bool
) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        body = {**bad_body(path, {"stream": is_streaming}), "options": {"num_predict": 100}}
        with server.connect() as connection:
            connection.sendall(request_bytes(path, body))
            gate.let(4)
            until(lambda: gate.num_steps == 4)
            connection.shutdown(socket.SHUT_RDWR)
        until(lambda: server.serving.lifecycle.num_in_flight == 0)
        gate.let(2)
        until(lambda: not server.engine.scheduler.has_requests)
        assert gate.num_steps <= 6
        gate.open()
        server.check_idle()


def test_ollama_requests_are_counted(serve: Any) -> None:
    with serve() as server:
        ask(server), ask(server, GENERATE), server.post("/api/show", {"model": "tiny"})
        text = server.get("/metrics").body.decode()
        for endpoint in ("ollama_chat", "ollama_generate", "ollama_show"):
            assert f'http_requests_total{{endpoint="{endpoint}",status="200"}} 1.0' in text
