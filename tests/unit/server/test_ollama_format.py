"""Lines of Ollama from parts of every kind: they say what the whole says, however it is cut."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from chairlift.outputs import CompletionOutput, RequestMetrics, RequestOutput
from chairlift.server.ollama.answer_format import OllamaFormat
from chairlift.server.served_model import ServedModel
from dialect_answers import lines_of
from marked_reader import MarkedReader

METRICS = RequestMetrics(
    arrival_time=10.0, first_scheduled_time=11.0, first_token_time=11.5, last_token_time=13.5,
    finished_time=14.0,
)  # fmt: skip
WORDS = st.text('ab {}"\\\n日😀\u2028', min_size=1, max_size=12)
TEXTS = st.lists(
    st.one_of(
        WORDS,
        WORDS.map(lambda text: f"<think>{text}</think>"),
        st.dictionaries(st.sampled_from("ab"), WORDS | st.integers(), max_size=2).map(
            lambda value: f"<call f>{json.dumps(value)}</call>"
        ),
    ),
    max_size=5,
).map("".join)


def new_format(*, is_chat: bool = True) -> OllamaFormat:
    served = cast(ServedModel, SimpleNamespace())
    return OllamaFormat(MarkedReader(), served, model="m:x", is_chat=is_chat, num_logprobs=None)


def ollama_output(text: str, num_tokens: int, reason: str | None = None) -> RequestOutput:
    completion = CompletionOutput(0, text=text, token_ids=[1] * num_tokens, finish_reason=reason)
    return RequestOutput("r", "p", [1] * 7, [completion], metrics=METRICS)


def lines(text: str, cuts: list[int], **options: Any) -> list[dict[str, Any]]:
    format, data = new_format(**options), b""
    for number, end in enumerate(sorted(cuts), 1):
        data += format.chunks(ollama_output(text[:end], number))
    last = ollama_output(text, 5, "stop")
    return lines_of(data + format.chunks(last) + format.last_chunks([last]))


def whole_answer(text: str, reason: str = "stop", **options: Any) -> dict[str, Any]:
    answer = new_format(**options).whole([ollama_output(text, 5, reason)])
    return cast("dict[str, Any]", json.loads(answer.model_dump_json()))


@given(text=TEXTS, data=st.data())
def test_lines_say_what_the_whole_answer_says(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    told, whole = lines(text, cuts), whole_answer(text)["message"]
    messages = [line["message"] for line in told]
    assert "".join(message["content"] for message in messages) == whole["content"]
    thoughts = "".join(message.get("thinking", "") for message in messages)
    assert thoughts == whole.get("thinking", "")
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    assert calls == whole.get("tool_calls", [])
    assert all(message["role"] == "assistant" for message in messages)
    assert messages[-1] == {"role": "assistant", "content": ""}


def test_calls_come_whole_with_arguments_as_objects() -> None:
    text = 'Look: <call f>{"a": "日"}</call><call g>{}</call>'
    told = lines(text, list(range(1, len(text))))
    calls = [call for line in told for call in line["message"].get("tool_calls", [])]
    assert calls == [
        {"id": "id0", "function": {"index": 0, "name": "f", "arguments": {"a": "日"}}},
        {"id": "id1", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]


def test_generate_has_thoughts_beside_its_response() -> None:
    told = lines("<think>hm</think>yes", [9], is_chat=False)
    assert "".join(line["response"] for line in told) == "yes"
    assert "".join(line.get("thinking", "") for line in told) == "hm"
    whole = whole_answer("<think>hm</think>yes", is_chat=False)
    assert (whole["response"], whole["thinking"]) == ("yes", "hm")


def test_figures_are_those_of_the_engine() -> None:
    answer = whole_answer("x", "length")
    assert answer["done_reason"] == "length" and answer["model"] == "m:x"
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (7, 5)
    assert answer["total_duration"] == 4_000_000_000
    assert answer["prompt_eval_duration"] == 500_000_000
    assert answer["eval_duration"] == 2_000_000_000


def test_clients_may_divide_by_every_duration() -> None:
    output = ollama_output("x", 1, "stop")
    output.metrics = RequestMetrics()
    answer = json.loads(new_format().whole([output]).model_dump_json())
    for name in ("total_duration", "prompt_eval_duration", "eval_duration"):
        assert answer[name] == 1


def test_call_of_ollama_that_was_cut_off_has_what_arrived() -> None:
    answer = whole_answer('<call f>{"a": 1, "b": "lon', "length")
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
