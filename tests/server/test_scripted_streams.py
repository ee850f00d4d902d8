"""Streamed text against whole text over HTTP, with a model that writes a given text byte by byte.

Every token is one byte, so every character beyond ASCII and every stop string lies across tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chairlift.core.scheduler_output import SampledToken
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.sampler import SamplerOutput
from dialect_answers import lines_of, message_of, named_events, said_by, text_of
from http_harness import RunningServer, serving_engine
from parity.tiny_checkpoints import EOS_TOKEN_ID

NUM_TEXTS = 1000 if os.environ.get("CHAIRLIFT_FULL") else 50
MAX_BYTES = 100

ALPHABETS = {
    "ascii": "abc .\n",
    "emoji": "😀👍🏽❤️👩‍👧🇨🇿1️⃣",
    "cjk": "日本語漢字かな한국、。",
    "thai": "ภาษาไทยก็ำ้ ",
    "marks": "aeo\u0301\u0302\u0323\u0308\u20dd",
    "beyond": "\u00e9\u07ff\u0800\ufffd\U00010000\U0010ffff\u200d\u2028",
}
PIECES = st.one_of([st.text(alphabet, max_size=8) for alphabet in ALPHABETS.values()])
TEXTS = (
    st.lists(PIECES, min_size=1, max_size=4)
    .map("".join)
    .filter(lambda text: 0 < len(text.encode()) <= MAX_BYTES)
)


@st.composite
def texts_and_stops(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and stop strings of which some are in it and some nearly are."""
    text = draw(TEXTS)
    stops = []
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(text) - 1))
        stop = text[begin : begin + draw(st.integers(1, 5))]
        if draw(st.booleans()):
            stop += draw(st.sampled_from(["x", "\u0301", "😀"]))
        stops.append(stop)
    return text, stops


@pytest.fixture(scope="module")
def scripted(
    build_tiny: Callable[..., Any],
) -> Iterator[tuple[RunningServer, Callable[[str], None]]]:
    """A server, and a function that tells its model what to write before it ends."""
    ids: list[int] = []

    def sample(head: Any, states: Sequence[RequestSamplingState]) -> Any:
        tokens = [SampledToken(token_id=ids[state.num_output_tokens]) for state in states]
        return SamplerOutput(tokens=list(tokens), errors={})

    with serving_engine(build_tiny) as server:
        server.engine.model.runner._sampler.sample = sample  # type: ignore[method-assign]
        tokenizer = server.engine.model.tokenizer

        def script(text: str) -> None:
            spelled = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert tokenizer.decode(spelled, skip_special_tokens=False) == text
            ids[:] = [*spelled, EOS_TOKEN_ID]

        yield server, script


def cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, the longest if several are."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def deltas_of(events: list[Any]) -> list[str]:
    """The pieces of the first choice's text, of a chat or a text completion."""
    assert events[-1] == "[DONE]"
    choices = [event["choices"][0] for event in events[:-1]]
    return [choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            for choice in choices]  # fmt: skip


@settings(
    max_examples=NUM_TEXTS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=texts_and_stops(), include=st.booleans())
@example(case=("the brown fox", ["own fox"]), include=False)
@example(case=("👩‍👩‍👧‍👦🇨🇿", ["👦", "🇨"]), include=True)
@example(case=("日本語", ["本", "日本"]), include=False)
@example(case=("e\u0301\u0302", ["\u0302"]), include=False)
@example(case=("aab", ["ab", "aac"]), include=False)
def test_streamed_pieces_join_to_the_whole_text(
    scripted: tuple[RunningServer, Callable[[str], None]],
    case: tuple[str, list[str]],
    include: bool,
) -> None:
    server, script = scripted
    text, stops = case
    script(text)
    expected, stop_reason = cut(text, stops, include)
    options = {"max_tokens": MAX_BYTES + 1, "stop": stops, "include_stop_str_in_output": include}
    with ThreadPoolExecutor(4) as pool:
        chat = pool.submit(server.chat, "hi", **options)
        plain = pool.submit(server.complete, "hi", **options)
        chat_events = pool.submit(server.chat, "hi", stream=True, **options)
        plain_events = pool.submit(server.complete, "hi", stream=True, **options)
    for whole in (chat.result().json["choices"][0], plain.result().json["choices"][0]):
        found = whole["message"]["content"] if "message" in whole else whole["text"]
        assert (found, whole["stop_reason"]) == (expected, stop_reason)
        assert whole["finish_reason"] == "stop"
    for events in (chat_events.result().events, plain_events.result().events):
        assert "".join(deltas_of(events)) == expected
        last = events[-2]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop_reason)


@settings(
    max_examples=NUM_TEXTS,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=texts_and_stops())
@example(case=("the brown fox", ["own fox"]))
@example(case=("👩‍👩‍👧‍👦🇨🇿", ["👦", "🇨"]))
@example(case=("\u2028\ufffd\n\n日", ["\n\n\n"]))
def test_other_dialects_stream_the_whole_text(
    scripted: tuple[RunningServer, Callable[[str], None]], case: tuple[str, list[str]]
) -> None:
    server, script = scripted
    text, stops = case
    script(text)
    expected, stop = cut(text, stops, False)
    turns = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    message = {**turns, "max_tokens": MAX_BYTES + 1, "stop_sequences": stops}
    options = {"num_predict": MAX_BYTES + 1, "stop": stops}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", {**turns, "options": options}),
        ("/api/generate", {"model": "tiny", "prompt": "hi", "options": options}),
        ("/api/generate", {"model": "tiny", "prompt": "hi", "raw": True, "options": options}),
    ]
    with ThreadPoolExecutor(4) as pool:
        told = pool.submit(server.post, "/v1/messages", message)
        events = pool.submit(server.post, "/v1/messages", {**message, "stream": True})
        whole = [pool.submit(server.post, p, {**body, "stream": False}) for p, body in bodies]
        lines = [pool.submit(server.post, p, body) for p, body in bodies]
    for answer in (told.result().json, message_of(named_events(events.result().body))):
        assert said_by(answer) == expected and answer["stop_sequence"] == stop
        assert answer["stop_reason"] == ("end_turn" if stop is None else "stop_sequence")
    for future in whole:
        assert text_of(future.result().json) == expected
        assert future.result().json["done_reason"] == "stop"
    for future in lines:
        assert "".join(map(text_of, lines_of(future.result().body))) == expected


def test_text_that_ends_inside_a_character(
    scripted: tuple[RunningServer, Callable[[str], None]],
) -> None:
    """By its length: streamed and whole agree on what stands for the broken rest."""
    server, script = scripted
    for text in ("a😀", "日", "ไ", "e\u0301"):
        script(text)
        for length in range(1, len(text.encode())):
            whole = server.complete("hi", max_tokens=length).json["choices"][0]
            streamed = server.complete("hi", max_tokens=length, stream=True).events
            expected = text.encode()[:length].decode("utf-8", "replace")
            assert whole["text"] == "".join(deltas_of(streamed)) == expected
            assert whole["finish_reason"] == "length"
