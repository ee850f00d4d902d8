"""Makes sense of one streamed completion: when each piece of text came, usage, how it ended."""

from __future__ import annotations

import json
from typing import Any

from chairlift.bench.serve.event_stream import EventStream
from chairlift.bench.serve.failure import Failure
from chairlift.bench.serve.http_answer import AnswerHead

MAX_PLAIN_BYTES = 1024 * 1024
"""Of an answer that is no stream: an error, read for its message."""

_TEXT_KEYS = ("content", "reasoning_content", "reasoning")


class StreamedAnswer:
    """A `Receiver` for /v1/completions and /v1/chat/completions.  Times: `time.monotonic`."""

    def __init__(self) -> None:
        self.text_times_s: list[float] = []
        """When each chunk with text came."""
        self.first_choice_s: float | None = None
        self.last_choice_s: float | None = None
        """Of chunks that have choices, with text or without."""
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.has_all = False
        self.retry_after_s: float | None = None
        self._is_stream = False
        self._status = 0
        self._events = EventStream()
        self._plain = b""
        self._failure: Failure | None = None

    @property
    def first_token_s(self) -> float | None:
        """The first text; without any text, the first chunk with choices."""
        return self.text_times_s[0] if self.text_times_s else self.first_choice_s

    def failure(self) -> Failure | None:
        """What is wrong with an answer that has ended; None for a good one."""
        if self._status != 200:
            return Failure(f"http_{self._status}", _error_message(self._plain))
        if self._failure is not None:
            return self._failure
        if not self._is_stream:
            return Failure("bad_answer", "the answer is no event stream")
        if self.first_choice_s is None:
            return Failure("empty_answer", "the stream ended without a choice")
        if self.finish_reason is None and not self.has_all:
            return Failure("cut_stream", "the stream ended without finish_reason and [DONE]")
        return None

    def on_head(self, head: AnswerHead, now_s: float) -> None:
        self._status = head.status
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._is_stream = head.status == 200 and kind == "text/event-stream"
        self.retry_after_s = _seconds(head.headers.get("retry-after"))

    def on_body(self, data: bytes, now_s: float) -> None:
        if self._is_stream:
            for event in self._events.feed(data):
                self._on_event(event, now_s)
        elif len(self._plain) < MAX_PLAIN_BYTES:
            self._plain += data

    def _on_event(self, event: bytes, now_s: float) -> None:
        if event == b"[DONE]":
            self.has_all = True
            return
        try:
            message = json.loads(event)
            if error := message.get("error"):
                self._fail("stream_error", _message_of(error))
                return
            if isinstance(usage := message.get("usage"), dict):
                self.usage = usage
            for choice in message.get("choices") or ():
                self._on_choice(choice, now_s)
        except (ValueError, TypeError, AttributeError, RecursionError):
            self._fail("bad_answer", f"not a completion chunk: {event[:80]!r}")

    def _on_choice(self, choice: dict[str, Any], now_s: float) -> None:
        if self.first_choice_s is None:
            self.first_choice_s = now_s
        self.last_choice_s = now_s
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else _delta_text(delta)
        if text:
            self.text_times_s.append(now_s)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _fail(self, cause: str, message: str) -> None:
        """The first failure is the cause of what follows."""
        self._failure = self._failure or Failure(cause, message)


def _delta_text(delta: dict[str, Any]) -> object:
    for key in _TEXT_KEYS:
        if text := delta.get(key):
            return text
    return delta.get("tool_calls")


def _error_message(body: bytes) -> str:
    """The message in an error's body, in the forms that servers give it."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body[:200].decode("utf-8", "replace")
    if isinstance(content, dict):
        content = content.get("error") or content.get("detail") or content.get("message") or content
    return _message_of(content)


def _message_of(error: object) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])[:200]
    return str(error)[:200]


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After header; the form with a date is not read."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
