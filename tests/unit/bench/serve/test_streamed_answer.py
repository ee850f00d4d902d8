"""What the client makes of chunks, in the dialects of several servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chairlift.bench.serve.http_answer import AnswerHead
from chairlift.bench.serve.streamed_answer import StreamedAnswer


def answer_to(
    *chunks: tuple[float, Any], status: int = 200, kind: str = "text/event-stream; charset=utf-8"
) -> StreamedAnswer:
    """Chunks are (time, JSON or text)."""
    answer = StreamedAnswer()
    answer.on_head(AnswerHead(status, {"content-type": kind, "retry-after": "3"}, True), 0.0)
    for now_s, chunk in chunks:
        text = chunk if isinstance(chunk, str) else json.dumps(chunk)
        answer.on_body(f"data: {text}\n\n".encode(), now_s)
    return answer


def chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None}


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}


def test_a_completion() -> None:
    answer = answer_to(
        (1, text("a")), (2, text("b")), (4, text("", "length")), (5, USAGE), (5, "[DONE]")
    )
    assert answer.failure() is None and answer.has_all
    assert answer.text_times_s == [1, 2]
    assert (answer.first_token_s, answer.last_choice_s) == (1, 4)
    assert answer.usage == USAGE["usage"] and answer.finish_reason == "length"


def test_a_role_is_not_the_first_token() -> None:
    answer = answer_to((1, chat(role="assistant", content="")), (3, chat(content="a")))
    assert answer.first_token_s == 3


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_everything_that_was_generated_counts(key: str) -> None:
    assert answer_to((2, chat(**{key: "x"}))).text_times_s == [2]


def test_an_answer_of_invisible_tokens_still_has_a_first_one() -> None:
    assert answer_to((1, text("")), (2, text("", "stop"))).first_token_s == 1


def test_usage_in_every_chunk_counts_the_last() -> None:
    first, last = ({**text("a"), "usage": {"completion_tokens": n}} for n in (1, 2))
    assert answer_to((1, first), (2, last), (3, text("", "stop"))).usage == {"completion_tokens": 2}


def test_several_events_in_a_packet() -> None:
    answer = StreamedAnswer()
    answer.on_head(AnswerHead(200, {"content-type": "text/event-stream"}, True), 0.0)
    packet = "".join(f"data: {json.dumps(text(word))}\n\n" for word in "abc") + ": ping\n\n"
    answer.on_body(packet.encode(), 2.0)
    assert answer.text_times_s == [2.0] * 3


@pytest.mark.parametrize(
    ("chunks", "cause", "message"),
    [
        ([(1, text("a"))], "cut_stream", "without finish_reason"),
        ([(1, {"error": {"message": "died", "code": None}})], "stream_error", "died"),
        ([(1, text("a")), (2, {"error": "boom"}), (2, "[DONE]")], "stream_error", "boom"),
        ([(1, "{not json")], "bad_answer", "not a completion chunk"),
        ([(1, "[1]")], "bad_answer", "not a completion chunk"),
        ([(1, {"choices": ["a"]})], "bad_answer", "not a completion chunk"),
        ([(1, "[DONE]")], "empty_answer", "without a choice"),
        ([(1, USAGE), (1, "[DONE]")], "empty_answer", "without a choice"),
    ],
)
def test_bad_streams(chunks: list[tuple[float, Any]], cause: str, message: str) -> None:
    failure = answer_to(*chunks).failure()
    assert failure is not None and failure.cause == cause and message in failure.message


def test_done_without_a_finish_reason_is_an_answer() -> None:
    assert answer_to((1, text("a")), (2, "[DONE]")).failure() is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error":{"message":"full","type":"rate_limit_error"}}', "full"),
        ('{"error":"full"}', "full"),
        ('{"detail":[{"loc":"x"}]}', "[{'loc': 'x'}]"),
        ("<html>", "<html>"),
        ("", ""),
    ],
)
def test_refusals_have_their_status_and_message(body: str, message: str) -> None:
    answer = StreamedAnswer()
    answer.on_head(AnswerHead(429, {"retry-after": "3"}, True), 0.0)
    for byte in body:
        answer.on_body(byte.encode(), 0.0)
    failure = answer.failure()
    assert failure is not None and failure.cause == "http_429" and failure.message == message
    assert answer.retry_after_s == 3.0


def test_an_answer_that_is_no_stream_is_bad() -> None:
    failure = answer_to(kind="application/json").failure()
    assert failure is not None and failure.cause == "bad_answer"
