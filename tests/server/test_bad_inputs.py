"""Hostile and mistaken requests: the right status and code, and no trace left behind.

After each case the server answers a control request with the same text, and the KV cache is as
empty as before.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from http_harness import Answer, RunningServer, until
from parity.tiny_checkpoints import EOS_TOKEN

CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "hi"}]
HUGE = 10**400
VOCABULARY = 256


@pytest.fixture(scope="module")
def control_text(server: RunningServer) -> str:
    return str(server.complete("control").json["choices"])


@pytest.fixture(autouse=True)
def unharmed(server: RunningServer, control_text: str) -> Iterator[None]:
    yield
    assert str(server.complete("control").json["choices"]) == control_text
    server.check_idle()


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {"model": "tiny", "max_tokens": 2}
    base |= {"messages": MESSAGES} if path == CHAT else {"prompt": "abc"}
    return {**base, **fields}


def send(server: RunningServer, path: str, fields: dict[str, Any]) -> Answer:
    return server.post(path, body_of(path, fields))


def with_field(path: str, name: str, text: str) -> bytes:
    """A body in which one value is written as it stands, JSON or not."""
    body = body_of(path, {})
    body.pop(name, None)
    return json.dumps(body)[:-1].encode() + f', "{name}": {text}}}'.encode()


# -- rows 1 to 3: no JSON ----------------------------------------------------------------------
NOT_AN_OBJECT = {
    "brace": b"{",
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "number": b"123",
    "bytes": b'{"model": "\xff"}',
    "utf-16": '{"model": "tiny"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + json.dumps(body_of(TEXT, {})).encode(),
    "rest": b'{"model": "tiny"} x',
    "comment": b'{"model": "tiny" /* x */}',
    "single quotes": b"{'model': 'tiny'}",
    "trailing comma": b'{"model": "tiny",}',
    "half surrogate": b'{"model": "tiny", "prompt": "\\ud800"}',
    "half surrogate in a key": b'{"model": "tiny", "\\udfff": 1}',
    "deep lists": b'{"a": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    "deep objects": b'{"a":' * 300 + b"1" + b"}" * 300,
    "65 levels": b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}",
    "huge number": b'{"n": ' + b"9" * 5000 + b"}",
    "NaN": b'{"a": NaN}',
    "infinite": b'{"a": -Infinity}',
}


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("name", NOT_AN_OBJECT)
def test_no_json_object(server: RunningServer, path: str, name: str) -> None:
    answer = server.post(path, NOT_AN_OBJECT[name], headers={"content-type": "application/json"})
    assert answer.status == 400 and answer.error["code"] == "invalid_json"


@pytest.mark.parametrize("half", ["\\ud800", "\\udfff x", "\\ud800\\u0041"])
def test_half_a_surrogate_pair_in_any_text(server: RunningServer, half: str) -> None:
    text = f'"{half}"'
    for path, name, value in (
        (TEXT, "prompt", text),
        (TEXT, "prompt", f"[{text}]"),
        (TEXT, "stop", f"[{text}]"),
        (TEXT, "user", text),
        (TEXT, "metadata", f'{{"custom_id": {text}}}'),
        (CHAT, "messages", f'[{{"role": "user", "content": {text}}}]'),
        (
            CHAT,
            "messages",
            f'[{{"role": "user", "content": [{{"type": "text", "text": {text}}}]}}]',
        ),
        (CHAT, "tools", f'[{{"type": "function", "function": {{"name": {text}}}}}]'),
    ):
        answer = server.post(path, with_field(path, name, value))
        assert answer.status == 400 and answer.error["code"] == "invalid_json", name


def test_too_many_members(server: RunningServer) -> None:
    many = b"1," * 300_000 + b"1"
    answer = server.post(TEXT, b'{"prompt": [' + many + b"]}")
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
    for path, data in (
        (TEXT, b"[" * 300_000),
        (VECTORS, many),
        (CHAT, many),
        (CHAT, b"{}," * 150_000),
    ):
        answer = server.post(path, b'{"prompt": [' + data + b"]}")
        assert answer.status == 400 and "members" in answer.error["message"]


@pytest.mark.parametrize("text", ["," * 10**6, "[{" * 500_000, '\\,"' * 300_000])
def test_marks_of_json_in_a_text_are_text(server: RunningServer, text: str) -> None:
    """A million commas are a text that is too long, not too many members; fewer are served."""
    for path, fields in (
        (TEXT, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        (VECTORS, {"input": text, "model": "tiny"}),
    ):
        answer = server.post(path, {**body_of(path, {}), **fields})
        assert answer.status == 400 and answer.error["code"] == "context_length_exceeded", path
    assert server.chat(user=text[:400_000], metadata={"a": text[:500]}).status == 200
    assert server.post("/tokenize", {"prompt": text[:500]}).json["count"] > 100


# -- row 4: unusual text is text ---------------------------------------------------------------
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("text", ["a\x00b", "\x1b[31m", "\u202eabc", "😀", "e" + "\u0301" * 60])
def test_unusual_text_is_served(server: RunningServer, path: str, text: str) -> None:
    if path == CHAT:
        assert server.chat(text).status == 200
    else:
        assert server.complete(text, echo=True).json["choices"][0]["text"].startswith(text)


# -- rows 5 to 13, 19, 20: options -------------------------------------------------------------
NUMBERS = {
    "temperature": ["NaN", "Infinity", "1e999", '"0.7"', "true", "[]", "-1", "2.1", "{}"],
    "top_p": ["0", "-0.1", "1.1", '"1"', "true", "1e999"],
    "top_k": ["-2", str(2**63), "1.5", '"5"', "true", str(HUGE)],
    "min_p": ["2", "-0.1", "true"],
    "presence_penalty": ["2.01", "-2.01", "1e308", '"1"', "true"],
    "frequency_penalty": ["2.01", "-2.01", "1e308", "null_", "[]"],
    "repetition_penalty": ["0", "-1", "1e308", '"1"', "true"],
    "n": ["0", "-1", "129", "1000000", str(10**30), "1.5", "true", '"3"', "[]", str(HUGE)],
    "max_tokens": ["-1", str(2**31), str(2**63), str(HUGE), "1.5", '"5"', "true", "1e3"],
    "min_tokens": ["-1", str(2**31), "true"],
    "seed": [str(2**63), str(-(2**63) - 1), "1.5", '"1"', "true", str(HUGE)],
    "stop": ['""', '["a","b","c","d","e"]', f'"{"x" * 10_000}"', "[1]", "1", '[""]', "{}", "true"],
    "stop_token_ids": ["[-1]", "[256]", f"[{2**31}]", "[1.0]", "[true]", '"1"', "1", '["a"]'],
    "allowed_token_ids": ["[]", "[256]", "[-1]", "5"],
    "logit_bias": [
        '{"abc":1}', '{"-1":1}', '{"999999":1}', '{"1":101}', '{"1":NaN}', '{"1":"2"}', "[]",
        '{"1":true}', '{"1":1e999}', '{"1.5":1}', '{"٣":1}', "5",
        "{" + ",".join(f'"{i}":1' for i in range(2000)) + "}",
        "{" + ",".join(f'"{i}":1' for i in range(100_000)) + "}",
    ],  # fmt: skip
    "bad_words": ["[1]", '[""]', '"x"', "{}"],
    "stream": ['"yes"', "1", "[]", '"true"'],
    "ignore_eos": ['"no"', "0", "{}"],
    "skip_special_tokens": ["1", '"x"'],
    "include_stop_str_in_output": ["1"],
    "priority": ["1.5", '"high"', "true", str(2**40)],
    "timeout": ["0", "-1", '"5"', "true", "1e999", "NaN"],
    "cache_salt": ["1", f'"{"x" * 300}"', "[]"],
    "model": ["1", '["tiny"]', "{}", '""', "true"],
    "stream_options": ["true", "[]", '{"include_usage": "yes"}', '{"include_usage": true}'],
    "user": ["1", "{}"],
    "metadata": ['"x"', '{"a": 1}', json.dumps({str(i): "" for i in range(17)}),
                 json.dumps({"k" * 65: ""}), json.dumps({"k": "v" * 513})],
    "store": ['"yes"', "1"],
    "service_tier": ["1"],
}  # fmt: skip
CASES = [
    (path, name, text)
    for path in (CHAT, TEXT)
    for name, texts in NUMBERS.items()
    for text in texts
    if text != "null_"
]


@pytest.mark.parametrize(
    ("path", "name", "text"), CASES, ids=[f"{p[4:8]}-{n}-{t[:24]}" for p, n, t in CASES]
)
def test_option_of_the_wrong_kind_or_size(
    server: RunningServer, path: str, name: str, text: str
) -> None:
    answer = server.post(path, with_field(path, name, text))
    assert answer.status == 400, answer.body
    error = answer.error
    assert error["type"] == "invalid_request_error"
    if error["code"] != "invalid_json":
        assert error["param"] is not None and error["param"].startswith(name)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("text", ["-0.0", "0", "0.0", "2", "1e-320"])
def test_legal_temperatures(server: RunningServer, path: str, text: str) -> None:
    assert server.post(path, with_field(path, "temperature", text)).status == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_null_means_absence(server: RunningServer, path: str) -> None:
    names = [*NUMBERS, "logprobs", "top_logprobs", "response_format", "tools", "best_of", "suffix"]
    nulls = {name: None for name in names if name != "model"}
    assert send(server, path, nulls).status == 200


def test_number_above_its_maximum_has_its_code(server: RunningServer) -> None:
    assert send(server, TEXT, {"n": 129}).error["code"] == "integer_above_max_value"


TEXT_ONLY = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"best_of": 1, "n": 2, "temperature": 1}, "best_of"),
    ({"best_of": 21}, "best_of"),
    ({"best_of": 2, "stream": True, "temperature": 1}, "best_of"),
    ({"best_of": True}, "best_of"),
    ({"best_of": 1_000_000}, "best_of"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 10**6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"echo": 1}, "echo"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": True}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [VOCABULARY]}, "prompt"),
    ({"prompt": [2**31]}, "prompt"),
    ({"prompt": [2**64]}, "prompt"),
    ({"prompt": [1.0]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [[1, 2], [VOCABULARY]]}, "prompt"),
    ({"prompt": ["a"] * 100_000}, "prompt"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ({"guided_regex": "*("}, "guided_regex"),
    ({"use_beam_search": True}, "use_beam_search"),
]


@pytest.mark.parametrize(
    ("fields", "param"), TEXT_ONLY, ids=[str(fields)[:40] for fields, _ in TEXT_ONLY]
)
def test_bad_text_completion(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = send(server, TEXT, fields)
    assert answer.status == 400 and (answer.error["param"] or "").startswith(param), answer.body


def test_no_tokens_at_all_need_echo(server: RunningServer) -> None:
    for fields, status in (({}, 400), ({"echo": True}, 200), ({"echo": True, "logprobs": 1}, 200)):
        answer = send(server, TEXT, {"max_tokens": 0, **fields})
        assert answer.status == status
    assert answer.json["choices"][0]["text"] == "abc"
    assert answer.json["usage"]["completion_tokens"] == 0


def test_missing_fields(server: RunningServer) -> None:
    for path, name in ((TEXT, "prompt"), (TEXT, "model"), (CHAT, "messages"), (CHAT, "model")):
        body = body_of(path, {})
        del body[name]
        answer = server.post(path, body)
        assert answer.status == 400 and answer.error["param"] == name
        assert answer.error["code"] == "missing_required_parameter"


def test_empty_prompt_is_the_beginning_of_a_text_or_refused(server: RunningServer) -> None:
    """The tiny model begins texts with BOS only if its tokenizer says so."""
    answer = send(server, TEXT, {"prompt": ""})
    assert answer.status == (200 if server.engine.model.tokenizer.add_bos else 400)


# -- rows 16 to 18: length ---------------------------------------------------------------------
def test_context_length(server: RunningServer) -> None:
    limit = server.get("/v1/models").json["data"][0]["max_model_len"]
    for length, status in ((limit + 1, 400), (limit, 400), (limit - 1, 200)):
        answer = send(server, TEXT, {"prompt": [5] * length, "max_tokens": 1})
        assert answer.status == status
        if status == 400:
            assert answer.error["code"] == "context_length_exceeded"
    fits = send(server, TEXT, {"prompt": [5] * 10, "max_tokens": limit - 10, "ignore_eos": True})
    assert fits.status == 200 and fits.json["usage"]["total_tokens"] == limit
    over = send(server, TEXT, {"prompt": [5] * 10, "max_tokens": limit - 9})
    assert over.status == 400 and over.error["code"] == "context_length_exceeded"
    chat = server.chat("a" * limit)
    assert chat.status == 400 and chat.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("letters", ["a", " ", "QUJD", "a,"])
def test_prompt_of_31_megabytes_is_refused_quickly(server: RunningServer, letters: str) -> None:
    text = letters * (31_000_000 // len(letters))
    for path, fields in (
        (TEXT, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
    ):
        answer = send(server, path, fields)
        assert answer.status == 400
    until(lambda: server.serving.bodies.num_bytes == 0)


# -- row 19, the harmless ones -----------------------------------------------------------------
@pytest.mark.parametrize("stop", ["never to be found", EOS_TOKEN[:3], [], ["x"], ["a", "b", "c"]])
def test_stop_that_does_not_match(server: RunningServer, stop: Any) -> None:
    assert send(server, TEXT, {"stop": stop}).status == 200


# -- rows 22 to 25: messages -------------------------------------------------------------------
BAD_MESSAGES: list[tuple[Any, str]] = [
    ([], "messages"),
    ("x", "messages"),
    ({}, "messages"),
    ([123], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"role": 123, "content": "x"}], "messages[0].role"),
    ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 123}], "messages[0].content"),
    ([{"role": "user", "content": {}}], "messages[0].content"),
    ([{"role": "user", "content": [1]}], "messages[0].content"),
    ([{"role": "user", "content": [{}]}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "sound"}]}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content"),
    (
        [
            {"role": "user", "content": "x"},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}],
            },
        ],
        "messages[1].content",
    ),
    (
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        "messages[0].content",
    ),
    ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    ([MESSAGES[0]] * 10_000, "messages"),
    (
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * 5000}],
        "messages[0].content",
    ),
]


@pytest.mark.parametrize(
    ("messages", "param"), BAD_MESSAGES, ids=[str(m)[:48] for m, _ in BAD_MESSAGES]
)
def test_bad_messages(server: RunningServer, messages: Any, param: str) -> None:
    answer = send(server, CHAT, {"messages": messages})
    assert answer.status == 400 and answer.error["param"] == param, answer.body


def test_part_of_another_type_is_named(server: RunningServer) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
    assert "image_url" in send(server, CHAT, {"messages": messages}).error["message"]


def test_a_message_of_a_million_parts(server: RunningServer) -> None:
    part = b'{"type":"text","text":"x"},'
    start = b'{"model": "tiny", "messages": [{"role": "user", "content": ['
    answer = server.post(CHAT, start + (part * 10**6)[:-1] + b"]}]}")
    assert answer.status == 400, answer.body


NOT_FETCHED = [
    "http://127.0.0.1:{port}/x.png",
    "http://ok.example\\@127.0.0.1:{port}/",
    "http://ok.example@127.0.0.1:{port}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/",
    "data:image/png;base64,",
    "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode(),
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAw1AAAMNQCAYAAAA=",  # 50,000 x 50,000, it says
    "data:image/gif;base64," + ",".join("A" * 4 for _ in range(10_000)),
]


@pytest.mark.parametrize("url", NOT_FETCHED, ids=[url[:32] for url in NOT_FETCHED])
def test_no_url_is_ever_fetched(server: RunningServer, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = url.replace("{port}", str(listener.getsockname()[1]))
        for kind in ("image_url", "video_url", "input_audio", "file"):
            part = {"type": kind, kind: {"url": url, "file_data": url, "data": url}}
            answer = send(server, CHAT, {"messages": [{"role": "user", "content": [part]}]})
            assert answer.status == 400 and answer.error["param"] == "messages[0].content"
            assert url[:20] not in answer.error["message"]
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_image_above_the_cap_of_bodies(server: RunningServer) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000_000}}
    answer = send(server, CHAT, {"messages": [{"role": "user", "content": [part]}]})
    assert answer.status in (400, 413)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "x", "tool_call_id": "never heard of"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{not json"}}]},
        {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "developer", "content": "x"},
        {"role": "system", "content": ""},
        {"role": "user", "content": "x", "unheard_of": {"a": [1]}},
    ],
)  # fmt: skip
def test_odd_messages_are_served(server: RunningServer, message: Any) -> None:
    assert send(server, CHAT, {"messages": [message, *MESSAGES]}).status == 200


# -- rows 24 to 28: tools ------------------------------------------------------------------------
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **function}}]


BAD_TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"tools": "x"}, "tools"),
    ({"tools": ["x"]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [tool(name=f"f{index}")[0] for index in range(129)]}, "tools"),
    ({"tools": tool(name="a b")}, "tools[0].function.name"),
    ({"tools": tool(name="f\n")}, "tools[0].function.name"),
    ({"tools": tool(name="f" * 300)}, "tools[0].function.name"),
    ({"tools": tool(name="")}, "tools[0].function.name"),
    ({"tools": tool(name=5)}, "tools[0].function.name"),
    ({"tools": tool(strict="yes")}, "tools[0].function.strict"),
    ({"tools": tool(description=5)}, "tools[0].function.description"),
    ({"tools": tool(parameters="x")}, "tools[0].function.parameters"),
    ({"tools": tool(parameters={"type": "something"})}, "tools[0].function.parameters"),
    ({"tools": tool(parameters={"type": "((("})}, "tools[0].function.parameters"),
    ({"tools": tool(parameters={"type": "string"})}, "tools[0].function.parameters"),
    ({"tools": tool(parameters={"properties": 5})}, "tools[0].function.parameters"),
    (
        {"tools": tool(parameters={"properties": {"a": {"type": "string", "pattern": "((("}}})},
        "tools[0].function.parameters",
    ),
    ({"tools": tool(parameters={"$ref": "x://y"})}, "tools[0].function.parameters"),
    ({"tools": tool(parameters={"$ref": "#/$defs/none"})}, "tools[0].function.parameters"),
    (
        {"tools": tool(parameters={"enum": [str(index) for index in range(5000)]})},
        "tools[0].function.parameters",
    ),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].function.name"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "perhaps", "tools": [FUNCTION]}, "tool_choice"),
    ({"tool_choice": 5, "tools": [FUNCTION]}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": [FUNCTION]}, "tool_choice"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [FUNCTION]},
        "tool_choice",
    ),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"parallel_tool_calls": "no", "tools": [FUNCTION]}, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_TOOLS, ids=[str(f)[:48] for f, _ in BAD_TOOLS])
def test_bad_tools(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = send(server, CHAT, fields)
    assert answer.status == 400 and answer.error["param"] == param, answer.body


def test_a_tool_whose_name_is_no_text_at_all(server: RunningServer) -> None:
    field = '[{"type": "function", "function": {"name": "\\ud800"}}]'
    assert server.post(CHAT, with_field(CHAT, "tools", field)).status == 400


# -- rows 29 to 32, 35, 36, 38: what is not served -----------------------------------------------
REFUSED: list[dict[str, Any]] = [
    {"functions": [{"name": "f"}]},
    {"chat_template": "{{ ''.__class__ }}"},
    {"chat_template": "{% for i in range(1000) %}x{% endfor %}"},
    {"continue_final_message": True},
    {"audio": {"voice": "x", "format": "wav"}},
    {"modalities": ["text", "audio"]},
    {"prediction": {"type": "content", "content": "x"}},
    {"web_search_options": {}},
    {"documents": [{"text": "x"}]},
    {"prompt_embeds": "x"},
    {"prompt_logprobs": 1},
    {"use_beam_search": True},
    {"best_of": 2},
    {"echo": True},
    {"logits_processors": ["x"]},
]


@pytest.mark.parametrize("fields", REFUSED, ids=[str(fields)[:48] for fields in REFUSED])
def test_what_cannot_be_honoured_is_named(server: RunningServer, fields: dict[str, Any]) -> None:
    answer = send(server, CHAT, fields)
    assert answer.status == 400 and answer.error["code"] == "unsupported_parameter"
    assert answer.error["param"] in fields


@pytest.mark.parametrize("depth", [480, 2000])
def test_deep_schemas(server: RunningServer, depth: int) -> None:
    schema = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
    for name, value in (
        ("response_format", f'{{"type":"json_schema","json_schema":{{"schema":{schema}}}}}'),
        ("tools", f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]'),
    ):
        assert server.post(CHAT, with_field(CHAT, name, value)).status == 400


BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": "5"}, "max_completion_tokens"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"verbosity": "loud"}, "verbosity"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"enable_thinking": "x" * 10**6}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT, ids=[str(f)[:48] for f, _ in BAD_CHAT])
def test_bad_chat(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = send(server, CHAT, fields)
    assert answer.status == 400 and answer.error["param"] == param, answer.body


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"best_of": 1},
        {"chat_template_kwargs": {}},
    ],
)
def test_values_that_ask_for_nothing_are_fine(
    server: RunningServer, fields: dict[str, Any]
) -> None:
    answer = send(server, CHAT, fields)
    assert answer.status == 200 and "x-chairlift-ignored" not in answer.headers


def test_a_bad_request_does_not_spoil_the_next(server: RunningServer) -> None:
    for fields, status in (
        ({}, 200),
        ({"response_format": {"type": "json_schema"}}, 400),
        ({}, 200),
    ):
        assert send(server, CHAT, fields).status == status


# -- row 40 ------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", ["other", "../../etc/passwd", "tiny ", "TINY", "gpt-4o"])
def test_unknown_model(server: RunningServer, path: str, name: str) -> None:
    answer = send(server, path, {"model": name})
    assert answer.status == 404 and answer.error["code"] == "model_not_found"


def test_model_of_a_megabyte(server: RunningServer) -> None:
    answer = send(server, TEXT, {"model": "x" * 10**6})
    assert answer.status == 400 and len(answer.body) < 2000


# -- products of legal numbers -----------------------------------------------------------------
def test_product_of_choices_tokens_and_logprobs_is_bounded(server: RunningServer) -> None:
    limit = server.get("/v1/models").json["data"][0]["max_model_len"]
    fields = {"n": 128, "logprobs": 20, "max_tokens": limit - 4, "temperature": 1}
    answer = send(server, TEXT, {**fields, "prompt": [[5]] * 1000})
    assert answer.status == 400 and answer.error["param"] == "logprobs"


# -- tokenizing --------------------------------------------------------------------------------
BAD_TOKENS: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {}),
    ("/tokenize", {"prompt": 5}),
    ("/tokenize", {"prompt": "x", "messages": MESSAGES}),
    ("/tokenize", {"messages": []}),
    ("/tokenize", {"prompt": "x", "add_special_tokens": "yes"}),
    ("/tokenize", {"prompt": "x" * 20_000_000}),
    ("/detokenize", {}),
    ("/detokenize", {"tokens": "x"}),
    ("/detokenize", {"tokens": [-1]}),
    ("/detokenize", {"tokens": [256]}),
    ("/detokenize", {"tokens": [2**64]}),
    ("/detokenize", {"tokens": [1.5]}),
    ("/detokenize", {"tokens": [True]}),
    ("/detokenize", {"tokens": ["a"]}),
]


@pytest.mark.parametrize(("path", "body"), BAD_TOKENS, ids=[str(b)[:40] for _, b in BAD_TOKENS])
def test_bad_tokenizing(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    assert server.post(path, body).status == 400
    assert server.post("/tokenize", {"model": "x", "prompt": "a"}).status == 404
