"""Generated requests, mostly wrong: never an answer of 5xx, never a trace left behind.

Values come from a pool of awkward ones and may stand in any field, known or not, at any depth.
"""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chairlift.server.protocol.anthropic import MessagesRequest
from chairlift.server.protocol.chat import ChatRequest
from chairlift.server.protocol.completion import CompletionRequest
from chairlift.server.protocol.embedding import EmbeddingRequest
from chairlift.server.protocol.field_policy import (
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETIONS,
    REFUSED_IN_EMBEDDINGS,
    WITHOUT_EFFECT,
)
from chairlift.server.protocol.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaOptions,
)
from chairlift.server.protocol.response_request import REFUSED, ResponsesRequest
from dialect_answers import lines_of, message_of, named_events
from http_harness import Answer, RunningServer, request_bytes
from response_events import response_events

NUM_EXAMPLES = 1500 if os.environ.get("CHAIRLIFT_FULL") else 90
ANTHROPIC, OLLAMA = ["/v1/messages", "/v1/messages/count_tokens"], ["/api/chat", "/api/generate"]
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"]
PATHS += ["/v1/embeddings", *ANTHROPIC, *OLLAMA]
FIELDS = sorted(
    {*ChatRequest.model_fields, *CompletionRequest.model_fields, *REFUSED_IN_CHAT}
    | {*REFUSED_IN_COMPLETIONS, *WITHOUT_EFFECT, "tokens", "unknown", "", "a" * 300}
    | {*ResponsesRequest.model_fields, *REFUSED, "type", "role", "content", "call_id", "format"}
    | {*MessagesRequest.model_fields, *OllamaChatRequest.model_fields, *OllamaOptions.model_fields}
    | {*EmbeddingRequest.model_fields, *REFUSED_IN_EMBEDDINGS}
    | {*OllamaGenerateRequest.model_fields, "context", "images", "input_schema", "name"}
)

AWKWARD = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 2, 5, 20, 21, 128, 129, 255, 256, 2**31 - 1, 2**31, 2**63,
        10**30, 0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 1e-320, 1e308, "", " ", "a", "tiny", "auto", "none",
        "text", "required", "x" * 300, "\x00", "\u202e", "😀", "<|eos|>", "{{ 7*7 }}", [], {}, [[]],
        [{}], [0], [1.5], ["a"], [None], {"a": None}, {"1": 1}, {"1": -100}, {"type": "text"},
        [{"type": "text", "text": "a"}], {"include_usage": True}, [[1, 2], [3]],
        [{"role": "user", "content": "a"}], [{"role": "user", "content": None}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
        "message", "function_call", "item_reference", "reasoning", "allowed_tools", "json_schema",
        [{"type": "function", "name": "f"}], {"type": "function", "name": "f"},
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
        [{"type": "function_call_output", "call_id": "c", "output": []}], [{"type": "web_search"}],
        {"format": {"type": "json_object"}}, {"effort": "low"}, "resp_1",
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}],
    ]
)  # fmt: skip
VALUES = st.recursive(
    AWKWARD | st.text(max_size=8).filter(lambda text: text.isprintable()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
    ),
    max_leaves=6,
)
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 2,
    },
    "/v1/completions": {"model": "tiny", "prompt": "a", "max_tokens": 2},
    "/v1/embeddings": {"model": "tiny", "input": "a"},
    "/v1/responses": {"model": "tiny", "input": "a", "max_output_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
    **dict.fromkeys(
        ANTHROPIC,
        {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    ),
    "/api/chat": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "options": {"num_predict": 2},
    },
    "/api/generate": {"model": "tiny", "prompt": "a", "options": {"num_predict": 2}},
}


def check(path: str, answer: Answer) -> None:
    assert answer.status < 500, answer.body
    if answer.status >= 400:
        error = answer.json["error"] if path in ANTHROPIC + OLLAMA else answer.error
        assert error if path in OLLAMA else error["message"]
    elif answer.headers["content-type"] == "application/x-ndjson":
        assert lines_of(answer.body)
    elif path in ANTHROPIC and answer.headers["content-type"].startswith("text/event-stream"):
        assert message_of(named_events(answer.body))
    elif answer.headers["content-type"].startswith("text/event-stream"):
        if answer.body.startswith(b"event: "):
            assert response_events(answer.body)[-1]["response"]["status"] != "in_progress"
        else:
            assert answer.events[-1] == "[DONE]"
    else:
        assert isinstance(answer.json, dict)


@settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    path=st.sampled_from(PATHS),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    dropped=st.sets(
        st.sampled_from(["model", "messages", "prompt", "input", "tokens"]), max_size=1
    ),
)
@example("/v1/completions", {"stream": True, "n": 2, "echo": True, "logprobs": 2}, set())
@example("/v1/responses", {"stream": True, "top_logprobs": 2, "truncation": "auto"}, set())
@example("/v1/completions", {"max_tokens": 0, "echo": True, "stream": True}, set())
def test_generated_objects(
    server: RunningServer, path: str, fields: dict[str, Any], dropped: set[str]
) -> None:
    body = {name: value for name, value in BASE[path].items() if name not in dropped}
    check(path, server.post(path, body | fields))


@settings(
    max_examples=NUM_EXAMPLES // 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(path=st.sampled_from(PATHS), data=st.data())
def test_damaged_bytes(server: RunningServer, path: str, data: st.DataObject) -> None:
    """A good body with some of its bytes changed, lost or doubled."""
    body = bytearray(json.dumps(BASE[path]).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        if not body:
            body = bytearray(b"x")
    headers = {"content-type": "application/json"}
    check(path, server.post(path, bytes(body), headers=headers))


@settings(
    max_examples=NUM_EXAMPLES // 3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_requests(server: RunningServer, data: st.DataObject) -> None:
    """The same with the header as well."""
    request = bytearray(
        request_bytes("/v1/completions", BASE["/v1/completions"], headers="Connection: close\r\n")
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(request) - 1))
        request[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        request = request or bytearray(b"x")
    answer = server.raw(bytes(request), timeout_s=0.2, shut=data.draw(st.booleans()))
    assert not answer or int(answer.split(b" ", 2)[1]) < 500


def test_nothing_is_left(server: RunningServer) -> None:
    assert server.complete().status == 200
    server.check_idle()
