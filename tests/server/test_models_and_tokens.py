"""Models, tokenizing, health and the document."""

from __future__ import annotations

from typing import Any

import pytest

import chairlift
from http_harness import RunningServer


def test_models(server: RunningServer) -> None:
    answer = server.get("/v1/models").json
    (model,) = answer["data"]
    assert answer["object"] == "list" and model["object"] == "model" and model["id"] == "tiny"
    assert isinstance(model["created"], int) and model["max_model_len"] > 0
    assert server.get("/v1/models/tiny").json == model
    missing = server.get("/v1/models/other/name")
    assert missing.status == 404 and missing.error["code"] == "model_not_found"


def test_names_with_slashes_and_aliases(serve: Any) -> None:
    with serve(served_model_name=("org/model-1", "tiny")) as server:
        names = [model["id"] for model in server.get("/v1/models").json["data"]]
        assert names == ["org/model-1", "tiny"]
        assert server.get("/v1/models/org/model-1").json["id"] == "org/model-1"
        assert server.complete().json["model"] == "org/model-1"


@pytest.mark.parametrize("path", ["//v1//models/", "/v1/models/", "/v1///models"])
def test_doubled_and_trailing_slashes(server: RunningServer, path: str) -> None:
    assert server.get(path).status == 200


def test_post_with_a_trailing_slash_keeps_its_body(server: RunningServer) -> None:
    answer = server.post("/v1/completions//", {"model": "tiny", "prompt": "a", "max_tokens": 1})
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
def test_health(server: RunningServer, path: str) -> None:
    assert server.get(path).status == 200
    assert server.call("HEAD", path).status == 200


def test_version(server: RunningServer) -> None:
    assert server.get("/version").json == {"version": chairlift.__version__}


@pytest.mark.parametrize("text", ["abc", "", "Grüße 😀 ไทย", "a\x00b\x1b[0m\u202e", "e\u0301" * 50])
def test_tokenize_and_back(server: RunningServer, text: str) -> None:
    answer = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    tokens = answer.json
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] > 0
    back = server.post("/detokenize", {"tokens": tokens["tokens"]})
    assert back.json == {"prompt": text}


def test_tokenize_messages(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = server.post("/tokenize", {"model": "tiny", "messages": messages}).json
    assert answer["count"] == server.chat("hi").json["usage"]["prompt_tokens"]
    strings = server.post("/tokenize", {"prompt": "hi", "return_token_strs": True}).json
    assert len(strings["token_strs"]) == strings["count"]


def test_tokenizer_info(server: RunningServer) -> None:
    info = server.get("/tokenizer_info").json
    tokenizer = server.engine.model.tokenizer
    assert info["eos_token"] == tokenizer.eos_token and info["eos_token_id"] == tokenizer.eos_id
    assert info["vocab_size"] == 256 and "message" in info["chat_template"]


def test_unknown_path_and_verb(server: RunningServer) -> None:
    assert server.get("/nothing").error["type"] == "invalid_request_error"
    for method in ("GET", "PUT", "DELETE", "TRACE", "PATCH", "HEAD"):
        answer = server.call(method, "/v1/chat/completions")
        assert answer.status == 405 and answer.headers["allow"] == "POST"
    assert server.get("/v1/completions").error["code"] == "method_not_allowed"
    options = server.call("OPTIONS", "/v1/chat/completions")
    assert options.status == 204 and options.headers["allow"] == "POST"


def references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*map(references, schema.values()))
    if isinstance(schema, list):
        return set[str]().union(*map(references, schema))
    return set()


def test_openapi_document_is_whole(server: RunningServer) -> None:
    document = server.get("/openapi.json").json
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= names
    for path, operations in document["paths"].items():
        for method in operations:
            body = {"model": "tiny", "input": "a", "max_output_tokens": 1}
            is_kept = path.startswith("/v1/responses/")
            id = server.post("/v1/responses", body).json["id"] if is_kept else "tiny"
            answer = server.call(method.upper(), path.replace("{id}", id))
            assert answer.status not in (404, 405), path
            if answer.status == 200:
                kinds = operations[method]["responses"]["200"]["content"]
                assert answer.headers["content-type"].split(";")[0] in kinds, path
