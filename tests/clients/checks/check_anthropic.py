"""Anthropic's client: messages whole and streamed, the stream helper, counting, errors, retries."""

# /// script
# dependencies = ["anthropic==2.14.0"]
# [tool.client]
# serve = [
#     "--api-key", "sk-clients", "--max-num-seqs", "2", "--max-queued-requests", "2",
#     "--served-model-name", "smollm2", "--served-model-name", "claude-sonnet-4-5",
# ]
# ///

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import ExitStack
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from checklist import API_KEY, URL, keep_promises, metric, promise, until
from pydantic import BaseModel

MODEL = "smollm2"
QUESTION: list[Any] = [{"role": "user", "content": "Name three colours of the rainbow."}]
STORY: list[Any] = [{"role": "user", "content": "Count from 1 to 1000, one number per line."}]
SEATS = 2
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}
"""This version of the client has no argument for it."""

ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Colours(BaseModel):
    """What an answer is to consist of."""

    first: Literal["red", "green", "blue"]
    second: Literal["red", "green", "blue"]


SCHEMA = {**Colours.model_json_schema(), "additionalProperties": False}

client = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0)


def ask(**options: Any) -> Any:
    given = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, **GREEDY}
    return client.messages.create(**{**given, **options})


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def num_aborted() -> float:
    return metric("chairlift:requests_finished_total", reason="abort")


@promise
def a_message_answers_with_usage_and_a_request_id() -> None:
    message = ask()
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL
    assert text_of(message) and message.stop_reason in ("end_turn", "max_tokens")
    assert message._request_id and 1 <= message.usage.output_tokens <= 24
    again = ask()
    assert again.content == message.content and again.usage.cache_read_input_tokens > 0


@promise
def a_stream_tells_the_message_in_order() -> None:
    whole, seen, text = ask(), [], ""
    for event in ask(stream=True):
        seen.append(event.type)
        if event.type == "content_block_delta":
            text += event.delta.text
        if event.type == "message_delta":
            assert event.delta.stop_reason == whole.stop_reason
            assert event.usage.output_tokens == whole.usage.output_tokens
    assert text == text_of(whole)
    assert seen[:2] == ["message_start", "content_block_start"]
    assert seen[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@promise
def the_stream_helper_accumulates() -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 24}
    with client.messages.stream(**given, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = ask()
    assert text == text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens > 0


@promise
def tokens_are_counted_as_the_message_has_them() -> None:
    for options in ({}, {"system": "Be brief."}):
        usage = ask(**options).usage
        count = client.messages.count_tokens(model=MODEL, messages=QUESTION, **options)
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@promise
def stop_sequences_and_system_prompts_are_honoured() -> None:
    text = text_of(ask())
    stopped = ask(stop_sequences=[text[4:7]])
    assert text_of(stopped) == text.partition(text[4:7])[0]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[4:7])
    blocks: list[Any] = [
        {"type": "text", "text": "Answer in French.", "cache_control": {"type": "ephemeral"}}
    ]
    assert ask(system=blocks).content == ask(system="Answer in French.").content
    raw = client.messages.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=2, system=blocks
    )
    assert raw.headers["x-chairlift-ignored"] == "cache_control"


@promise
def conversations_go_on_with_what_was_answered() -> None:
    first = ask()
    turns = [*QUESTION, {"role": "assistant", "content": first.content}]
    turns.append({"role": "user", "content": [{"type": "text", "text": "And three more."}]})
    assert text_of(ask(messages=turns))


@promise
def names_of_the_model_are_aliases_and_others_are_not_found() -> None:
    answer = ask(model="claude-sonnet-4-5")
    assert answer.content == ask().content
    expect(anthropic.NotFoundError, 404, "not_found_error", model="claude-opus-4-1")


@promise
def errors_of_messages_are_the_right_exceptions() -> None:
    kind = "invalid_request_error"
    expect(anthropic.BadRequestError, 400, kind, "temperature", extra_body={"temperature": 1.5})
    expect(anthropic.BadRequestError, 400, kind, "messages", messages=[])
    image = [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}]
    turns = [{"role": "user", "content": image}]
    expect(anthropic.BadRequestError, 400, kind, "messages[0].content[0]", messages=turns)
    long = [{"role": "user", "content": "word " * 20_000}]
    expect(anthropic.BadRequestError, 400, kind, "prompt", messages=long)
    stranger = client.with_options(api_key="sk-wrong")
    expect(anthropic.AuthenticationError, 401, "authentication_error", by=stranger)


def expect(
    kind: type[anthropic.APIStatusError],
    status: int,
    type_name: str,
    said: str = "",
    *,
    by: Anthropic = client,
    **options: Any,
) -> None:
    given = {"model": MODEL, "messages": QUESTION, "max_tokens": 4, **options}
    try:
        by.messages.create(**given)
    except anthropic.APIStatusError as error:
        assert type(error) is kind and error.status_code == status, error
        assert isinstance(error.body, dict) and error.body["error"]["type"] == type_name
        assert said in error.body["error"]["message"], error.body
        return
    raise AssertionError(f"no {kind.__name__}")


@promise
def an_error_within_a_stream_is_raised() -> None:
    got = 0
    try:
        hurry = {"x-request-timeout": "0.5"}
        for _ in ask(messages=STORY, stream=True, max_tokens=6000, extra_headers=hurry):
            got += 1
    except anthropic.APIStatusError as error:
        assert "timeout_error" in str(error.body) and (got or error.status_code == 504)
        return
    raise AssertionError("the stream ended as if all were well")


@promise
def closing_a_stream_of_a_message_ends_it_in_the_server() -> None:
    before = num_aborted()
    with client.messages.stream(model=MODEL, messages=STORY, max_tokens=6000) as stream:
        next(iter(stream.text_stream))
    until(lambda: num_aborted() > before)


@promise
def a_full_queue_is_a_rate_limit_and_retries_get_through() -> None:
    options: dict[str, Any] = {"stream": True, "max_tokens": 6000}
    with ExitStack() as streams:
        opened: list[Any] = []

        def hold() -> None:
            opened.append(streams.enter_context(ask(messages=STORY, **options)))

        threads = [threading.Thread(target=hold) for _ in range(2 * SEATS)]
        for thread in threads[:SEATS]:
            thread.start()
        until(lambda: len(opened) == SEATS)
        for thread in threads[SEATS:]:
            thread.start()
        until(lambda: metric("chairlift:num_requests_waiting") == SEATS)
        expect(anthropic.RateLimitError, 429, "rate_limit_error")
        answers: list[Any] = []
        patient = client.with_options(max_retries=8)
        waiting = threading.Thread(
            target=lambda: answers.append(
                patient.messages.create(model=MODEL, messages=QUESTION, max_tokens=4)
            )
        )
        refused = metric("chairlift:http_requests_total", status="429")
        waiting.start()
        until(lambda: metric("chairlift:http_requests_total", status="429") > refused)
        for stream in opened:
            stream.close()
        for thread in threads:
            thread.join()
    waiting.join()
    assert text_of(answers[0])


@promise
async def async_messages_are_those_of_sync() -> None:
    async with AsyncAnthropic(base_url=URL, api_key=API_KEY, max_retries=8) as other:
        given: dict[str, Any] = {"model": MODEL, "max_tokens": 8, **GREEDY}
        prompts = [[{"role": "user", "content": f"Count to {index}."}] for index in range(2, 5)]
        told = await asyncio.gather(
            *(other.messages.create(**given, messages=prompt) for prompt in prompts)
        )
        for prompt, message in zip(prompts, told, strict=True):
            async with other.messages.stream(**given, messages=prompt) as stream:
                assert await stream.get_final_text() == text_of(message)
    assert [m.content for m in told] == [ask(messages=p, max_tokens=8).content for p in prompts]


def weather_of(message: Any) -> Any:
    (block,) = [block for block in message.content if block.type == "tool_use"]
    assert block.name == "get_weather" and set(block.input) == {"city"}
    return block


@promise
def a_tool_is_called_and_its_result_taken() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        how = {**choice, "disable_parallel_tool_use": True}
        options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": how, "max_tokens": 100}
        called = ask(messages=ASKED, **options)
        assert called.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": weather_of(called).id, "content": "sunny"}
        turns = [*ASKED, {"role": "assistant", "content": called.content}]
        turns.append({"role": "user", "content": [result]})
        assert text_of(ask(messages=turns, tools=[WEATHER], tool_choice={"type": "none"}))


@promise
def a_streamed_call_is_that_of_the_whole_message() -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": ASKED, "max_tokens": 100, **GREEDY}
    given |= {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with client.messages.stream(**given) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert json.loads("".join(pieces)) == weather_of(final).input
    assert final.stop_reason == "tool_use"
    assert weather_of(client.messages.create(**given)).input == weather_of(final).input


@promise
def answers_are_parsed_into_a_model() -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 400, **GREEDY}
    parsed = client.messages.parse(output_format=Colours, **given)
    assert isinstance(parsed.parsed_output, Colours)
    told = ask(max_tokens=400, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert Colours.model_validate_json(text_of(told))


keep_promises()
