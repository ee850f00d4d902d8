"""Messages from parts of every kind: streams say what whole answers say, however they are cut."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.anthropic.message_format import SIGNATURE, MessageFormat
from chairlift.server.chat_job import ChatWork
from dialect_answers import message_of, named_events
from marked_reader import MarkedReader

WORDS = st.text('ab {}"\\\n日😀\u2028', min_size=1, max_size=12)
CALLS = st.tuples(
    st.sampled_from(["look", "f"]),
    st.dictionaries(st.sampled_from(["a", "日"]), WORDS | st.integers() | st.none(), max_size=2),
)
PIECES = st.one_of(
    WORDS.map(lambda text: ("text", text)),
    WORDS.map(lambda text: ("thinking", text)),
    CALLS.map(lambda call: ("call", call)),
)


def written(pieces: list[tuple[str, Any]]) -> str:
    """What the model writes."""
    text = ""
    for kind, value in pieces:
        if kind == "text":
            text += value
        elif kind == "thinking":
            text += f"<think>{value}</think>"
        else:
            text += f"<call {value[0]}>{json.dumps(value[1], ensure_ascii=False)}</call>"
    return text


def expected_blocks(pieces: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring texts are one block, and so are neighbouring thoughts."""
    blocks: list[dict[str, Any]] = []
    num_calls = 0
    for kind, value in pieces:
        if kind == "call":
            id, name = f"id{num_calls}", value[0]
            blocks.append({"type": "tool_use", "id": id, "name": name, "input": value[1]})
            num_calls += 1
        elif blocks and blocks[-1]["type"] == kind:
            blocks[-1][kind] += value
        elif kind == "text":
            blocks.append({"type": "text", "text": value})
        else:
            blocks.append({"type": "thinking", "thinking": value, "signature": SIGNATURE})
    return blocks


def work(**request: Any) -> ChatWork:
    given = {"stop": (), "asked_tokens": 100, **request}
    return cast(
        ChatWork, SimpleNamespace(new_reader=MarkedReader, request=SimpleNamespace(**given))
    )


def message_format(*, shows_thinking: bool = True, **request: Any) -> MessageFormat:
    return MessageFormat(work(**request), id="msg_1", model="m", shows_thinking=shows_thinking)


def output(text: str, num_tokens: int, **finished: Any) -> RequestOutput:
    completion = CompletionOutput(0, text=text, token_ids=[1] * num_tokens, **finished)
    return RequestOutput("r", "p", [1] * 7, [completion], num_cached_tokens=3)


def streamed(text: str, cuts: list[int], **options: Any) -> dict[str, Any]:
    """The message of a stream whose text grows to each of the cuts, then ends."""
    format = message_format(**options)
    data = b""
    for number, end in enumerate(sorted(cuts), 1):
        data += format.chunks(output(text[:end], number))
    last = output(text, len(cuts) + 1, finish_reason="stop")
    data += format.chunks(last) + format.last_chunks([last])
    return message_of(named_events(data))


def whole(text: str, num_tokens: int, **options: Any) -> dict[str, Any]:
    finished = {"finish_reason": options.pop("finish_reason", "stop")}
    finished |= {"stop_reason": options.pop("stop_reason", None)}
    answer = message_format(**options).whole([output(text, num_tokens, **finished)])
    return answer.model_dump(exclude_none=True)


@given(pieces=st.lists(PIECES, max_size=5), data=st.data())
def test_stream_tells_the_whole_message(pieces: list[tuple[str, Any]], data: st.DataObject) -> None:
    text = written(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    told = streamed(text, cuts)
    assert told["content"] == expected_blocks(pieces)
    assert told["content"] == whole(text, 9)["content"]
    has_calls = any(kind == "call" for kind, _ in pieces)
    assert told["stop_reason"] == ("tool_use" if has_calls else "end_turn")
    assert told["usage"] == {
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
        "output_tokens": len(cuts) + 1,
    }  # fmt: skip


def test_arguments_cut_at_every_character() -> None:
    pieces = [("text", "I will."), ("call", ("f", {"a": "日😀"})), ("call", ("look", {}))]
    text = written(pieces)
    told = streamed(text, list(range(1, len(text))))
    assert told["content"] == expected_blocks(pieces) and told["stop_reason"] == "tool_use"


def test_thoughts_that_are_not_to_be_shown() -> None:
    text = "<think>hm</think>yes"
    for message in (
        streamed(text, [9], shows_thinking=False),
        whole(text, 2, shows_thinking=False),
    ):
        first, second = message["content"]
        assert first == {"type": "thinking", "thinking": "", "signature": SIGNATURE}
        assert second == {"type": "text", "text": "yes"}


def test_answer_without_a_word() -> None:
    assert streamed("", [0])["content"] == [] == whole("", 1)["content"]


@pytest.mark.parametrize(
    ("finished", "num_tokens", "expected"),
    [
        ({"finish_reason": "stop"}, 5, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": 7}, 5, ("end_turn", None)),
        ({"finish_reason": "stop", "stop_reason": "END"}, 5, ("stop_sequence", "END")),
        ({"finish_reason": "stop", "stop_reason": "of a parser"}, 5, ("end_turn", None)),
        ({"finish_reason": "length"}, 10, ("max_tokens", None)),
        ({"finish_reason": "length"}, 9, ("model_context_window_exceeded", None)),
    ],
)
def test_why_it_ended(finished: dict[str, Any], num_tokens: int, expected: tuple[str, Any]) -> None:
    message = whole("x", num_tokens, stop=("END",), asked_tokens=10, **finished)
    assert (message["stop_reason"], message.get("stop_sequence")) == expected


def test_call_that_was_cut_off_has_what_arrived() -> None:
    message = whole('<call f>{"a": 1, "b": "lon', 100, finish_reason="length")
    assert message["content"][0]["input"] == {"a": 1} and message["stop_reason"] == "max_tokens"
    for arguments in ("", "nonsense", "[1]"):
        assert whole(f"<call f>{arguments}", 5)["content"][0]["input"] == {}
