"""What changes nothing is named; what a request is called, and what the log says of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.server.server_log import JsonFormatter, TextFormatter, configure_server_log
from http_harness import RunningServer

OWN_ID = re.compile(r"req-[0-9a-f]{24}")


def ignored(answer: Any) -> set[str]:
    return set(filter(None, answer.headers.get("x-chairlift-ignored", "").split(", ")))


WITHOUT_EFFECT: dict[str, Any] = {
    "user": "somebody", "store": True, "metadata": {"a": "b"}, "service_tier": "auto",
    "safety_identifier": "x", "prompt_cache_key": "k", "prompt_cache_options": {"a": 1},
    "prompt_cache_retention": "24h",
}  # fmt: skip


@pytest.mark.parametrize("is_streaming", [True, False])
def test_fields_without_effect_are_named(server: RunningServer, is_streaming: bool) -> None:
    for send in (server.chat, server.complete):
        answer = send(stream=is_streaming, **WITHOUT_EFFECT)
        assert answer.status == 200 and ignored(answer) == set(WITHOUT_EFFECT)
    answer = server.chat(verbosity="low", parallel_tool_calls=True, reasoning_effort="low")
    assert ignored(answer) == {"verbosity", "parallel_tool_calls", "reasoning_effort"}


def test_unknown_fields_are_named_wherever_they_stand(server: RunningServer) -> None:
    answer = server.chat(
        messages=[{"role": "user", "content": "x", "mood": 1}],
        stream=True,
        stream_options={"surprise": 1, "include_obfuscation": True},
        novelty={"deep": [1]},
        priority=3,
    )
    assert answer.status == 200
    assert ignored(answer) == {
        "novelty", "messages.mood", "stream_options.surprise",
        "stream_options.include_obfuscation", "priority",
    }  # fmt: skip
    assert ignored(server.post("/tokenize", {"prompt": "x", "colour": 1})) == {"colour"}


def test_priority_counts_where_it_has_an_effect(serve: Any) -> None:
    with serve(engine={"scheduling_policy": "priority"}) as server:
        assert ignored(server.complete(priority=3)) == set()


def test_names_of_clients_cannot_break_the_header(server: RunningServer) -> None:
    fields = {"a\r\nset-cookie: x": 1, "\u00e4": 1, "x" * 500: 1}
    answer = server.complete(**fields)
    assert answer.status == 200 and ignored(answer) == {"(unprintable)"}
    assert "set-cookie" not in answer.headers
    many = server.complete(**{f"f{index}": 1 for index in range(100)})
    assert len(many.headers["x-chairlift-ignored"]) < 500


def test_strict_server_refuses_them(serve: Any) -> None:
    with serve(strict_fields=True) as server:
        assert server.chat().status == 200 == server.complete().status
        for name, value in (*WITHOUT_EFFECT.items(), ("novelty", 1)):
            answer = server.chat(**{name: value})
            assert answer.status == 400 and answer.error["code"] == "unknown_parameter"
            assert answer.error["param"] == name
        assert server.post("/tokenize", {"prompt": "x", "colour": 1}).status == 400


def test_ignored_fields_are_counted(serve: Any) -> None:
    from chairlift.server.metrics_hooks import MetricsHooks

    class Hooks(MetricsHooks):
        def __init__(self) -> None:
            self.names: list[str] = []

        def fields_ignored(self, names: Any) -> None:
            self.names += names

    hooks = Hooks()
    with serve(serving_options={"metrics": hooks}) as server:
        server.chat(user="x", novelty=1)
    assert sorted(hooks.names) == ["novelty", "user"]


# -- names of requests -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/health"), ("GET", "/nothing"), ("PUT", "/v1/models"), ("POST", "/v1/completions"),
     ("OPTIONS", "/v1/completions")],
)  # fmt: skip
def test_every_answer_has_a_name(server: RunningServer, method: str, path: str) -> None:
    answer = server.call(method, path)
    assert OWN_ID.fullmatch(answer.headers["x-request-id"])
    assert answer.headers["openai-processing-ms"].isdigit()


@pytest.mark.parametrize("is_streaming", [True, False])
def test_presentable_name_is_kept(server: RunningServer, is_streaming: bool) -> None:
    for name in ("abc", "A-b_c.9", "x" * 128):
        answer = server.complete(stream=is_streaming, headers={"x-request-id": name})
        assert answer.headers["x-request-id"] == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "\xe4", "a/b", "a;b", "x" * 10_000])
def test_other_names_are_replaced(server: RunningServer, name: str) -> None:
    answer = server.get("/health", headers={"x-request-id": name})
    assert OWN_ID.fullmatch(answer.headers["x-request-id"])


def test_name_with_a_line_end_cannot_be_sent_on(server: RunningServer) -> None:
    data = (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\x0bb\r\n"
        b"Connection: close\r\n\r\n"
    )
    answer = server.raw(data)
    assert b"a\x0bb" not in answer


def test_same_name_twice_at_once_is_fine(server: RunningServer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: server.complete(headers={"x-request-id": "same"}), range(8))
        )
    assert all(answer.status == 200 for answer in answers)
    assert len({answer.json["id"] for answer in answers}) == 8


# -- the log -----------------------------------------------------------------------------------
def test_access_log_has_no_prompt_and_no_key(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="chairlift"),
        serve(access_log=True, api_key=("sk-secret-key",)) as server,
    ):
        headers = {"authorization": "Bearer sk-secret-key", "x-request-id": "mine"}
        server.chat("a private matter", headers=headers)
        server.chat("a private matter", top_logprobs=5, headers=headers)
        server.get("/v1/models%1b[31m%0d%0aforged", headers=headers)
    lines = [TextFormatter().format(record) for record in caplog.records]
    text = "\n".join(lines)
    assert "private" not in text and "sk-secret" not in text
    assert any("POST /v1/chat/completions 200" in line and "mine" in line for line in lines)
    assert "\x1b" not in text and "\r" not in text
    assert not any(line.startswith("forged") for line in text.splitlines())


def test_prompts_are_logged_if_asked(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="chairlift"), serve(log_prompts=True) as server:
        server.chat("a public\nmatter")
        server.complete("another one")
    lines = [TextFormatter().format(record) for record in caplog.records]
    assert any("a public\\n" in line for line in lines)
    assert any("another one" in line for line in lines)


def record(message: str, *arguments: Any, **named: Any) -> logging.LogRecord:
    return logging.LogRecord("chairlift", logging.INFO, "f", 1, message, arguments, None, **named)


def test_text_lines_cannot_be_forged() -> None:
    shown = TextFormatter().format(record("%s", "a\nb\r\x1b[2J\u2028\u202e\x9bc\ufeff"))
    assert shown.isascii() and "\n" not in shown and "\\n" in shown and "\\x1b" in shown


def test_traceback_lines_are_marked() -> None:
    try:
        raise ValueError("first\n2026-01-01 INFO forged")
    except ValueError:
        import sys

        line = logging.LogRecord("chairlift", logging.ERROR, "f", 1, "x", (), sys.exc_info())
    head, *rest = TextFormatter().format(line).split("\n")
    assert head.endswith("ERROR x") and rest and all(part.startswith("    | ") for part in rest)


def test_json_lines_are_json() -> None:
    line = record("hello %s", "a\nb")
    line.fields = {"status": 200, "request_id": "r"}
    parsed = json.loads(JsonFormatter().format(line))
    assert parsed["message"] == "hello a\nb" and parsed["status"] == 200
    assert parsed["level"] == "info" and parsed["time"].endswith("Z")
    assert "\n" not in JsonFormatter().format(line)


@pytest.fixture
def loggers_are_put_back() -> Iterator[None]:
    names = ("chairlift", "uvicorn.error", "asyncio", "opentelemetry")
    before = [
        (log, log.handlers, log.propagate, log.level) for log in map(logging.getLogger, names)
    ]
    yield
    for log, handlers, propagate, level in before:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.mark.usefixtures("loggers_are_put_back")
@pytest.mark.parametrize("name", ["uvicorn.error", "asyncio", "opentelemetry.sdk.trace.export"])
def test_warnings_of_others_are_lines_of_the_log(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_server_log("json")
    logging.getLogger(name).info("nobody needs to know")
    logging.getLogger(name).warning("the collector is %s", "away")
    (line,) = capsys.readouterr().err.splitlines()
    parsed = json.loads(line)
    assert (parsed["message"], parsed["logger"]) == ("the collector is away", name)
