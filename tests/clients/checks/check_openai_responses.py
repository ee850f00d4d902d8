"""openai-python, its responses: whole, streamed, parsed, kept, followed, in the background."""

# /// script
# dependencies = ["openai==3.57.0"]
# [tool.client]
# serve = ["--api-key", "sk-clients"]
# ///

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
from checklist import API_KEY, URL, keep_promises, metric, promise, until
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0)
MODEL = client.models.list().data[0].id
SHORT: dict[str, Any] = {
    "model": MODEL, "input": "Name three colours of the rainbow.", "temperature": 0,
    "max_output_tokens": 24,
}  # fmt: skip
LONG: dict[str, Any] = {"max_output_tokens": 6000, "extra_body": {"ignore_eos": True}}
TOOL: dict[str, Any] = {
    "type": "function", "name": "get_weather", "strict": True, "description": "The weather now.",
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"], "additionalProperties": False,
    },
}  # fmt: skip


ONE_CALL: dict[str, Any] = {
    "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False,
}  # fmt: skip


class Colour(BaseModel):
    """What is asked for."""

    is_warm: bool
    kind: Literal["primary", "secondary"]


def respond(**options: Any) -> Any:
    return client.responses.create(**{**SHORT, **options})


def num_aborted() -> float:
    return metric("chairlift:requests_finished_total", reason="abort")


@promise
def a_response_has_text_and_usage() -> None:
    response = respond(instructions="Answer in one word.", metadata={"topic": "colours"})
    assert response.output_text and response.status in ("completed", "incomplete")
    assert response.usage.total_tokens == response.usage.input_tokens + (
        response.usage.output_tokens
    )
    assert response.metadata == {"topic": "colours"} and response.error is None
    assert respond(instructions="Answer in one word.").output_text == response.output_text


@promise
def a_stream_has_the_text_of_the_whole() -> None:
    whole = respond()
    events = list(respond(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text and len(deltas) > 3
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


@promise
def the_stream_helper_accumulates() -> None:
    options = {**SHORT, "max_output_tokens": 400, "extra_body": {"stop": [","]}}
    with client.responses.stream(**options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert final.output_text == client.responses.retrieve(final.id).output_text


@promise
def parse_gives_what_the_schema_says() -> None:
    parsed = client.responses.parse(
        model=MODEL, input="Is red warm? Of which kind is it?", temperature=0,
        max_output_tokens=200, text_format=Colour,
    )  # fmt: skip
    assert parsed.status == "completed", parsed.incomplete_details
    assert isinstance(parsed.output_parsed, Colour)
    with client.responses.stream(
        model=MODEL, input="Is red warm? Of which kind is it?", temperature=0,
        max_output_tokens=200, text_format=Colour,
    ) as stream:  # fmt: skip
        stream.until_done()
        assert stream.get_final_response().output_parsed == parsed.output_parsed


@promise
def a_tool_is_called_and_its_output_read() -> None:
    asked = {**SHORT, "input": "What is the weather in Paris?", "max_output_tokens": 100}
    first = client.responses.create(**asked, **ONE_CALL)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_weather" and '"city"' in call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(
        **{**asked, "input": [output]}, tools=[TOOL], previous_response_id=first.id,
        tool_choice="none",
    )  # fmt: skip
    assert second.output_text
    with client.responses.stream(**asked, **ONE_CALL) as stream:
        pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        (streamed,) = stream.get_final_response().output
    assert "".join(pieces) == streamed.arguments == call.arguments
    assert streamed.parsed_arguments == {"city": streamed.parsed_arguments["city"]}


@promise
def tools_of_other_types_are_left_out() -> None:
    raw = client.responses.with_raw_response.create(
        **SHORT, tools=[{"type": "web_search"}], include=["reasoning.encrypted_content"]
    )
    assert raw.parse().tools == []
    assert "tools.web_search" in raw.headers["x-chairlift-ignored"]


@promise
def responses_are_kept_listed_and_deleted() -> None:
    response = respond(input=[{"role": "user", "content": f"{n}?"} for n in range(5)])
    kept = client.responses.retrieve(response.id)
    assert kept == response
    items = list(client.responses.input_items.list(response.id, limit=2))
    assert [item.content[0].text for item in items] == [f"{n}?" for n in (4, 3, 2, 1, 0)]
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        try:
            call(response.id)
            raise AssertionError("it is still there")
        except openai.NotFoundError as error:
            assert error.code == "response_not_found"
    unkept = respond(store=False)
    try:
        client.responses.retrieve(unkept.id)
        raise AssertionError("it was kept")
    except openai.NotFoundError:
        pass


@promise
def a_conversation_goes_on() -> None:
    first = respond(input="My name is Ada.")
    second = respond(input="What is my name?", previous_response_id=first.id)
    spelled = respond(
        input=[{"role": "user", "content": "My name is Ada."}, *first.output,
               {"role": "user", "content": "What is my name?"}]
    )  # fmt: skip
    assert second.output_text == spelled.output_text
    assert second.usage.input_tokens == spelled.usage.input_tokens
    try:
        respond(previous_response_id="resp_none")
        raise AssertionError("it follows nothing")
    except openai.NotFoundError as error:
        assert error.code == "previous_response_not_found"


@promise
def what_runs_in_the_background_is_polled_and_cancelled() -> None:
    queued = respond(background=True)
    assert queued.status == "queued"
    until(lambda: client.responses.retrieve(queued.id).status not in ("queued", "in_progress"))
    assert client.responses.retrieve(queued.id).output_text == respond().output_text
    before = num_aborted()
    running = respond(background=True, **LONG)
    assert client.responses.cancel(running.id).status == "cancelled"
    until(lambda: num_aborted() > before)


@promise
def log_probabilities_are_included() -> None:
    response = respond(include=["message.output_text.logprobs"], top_logprobs=2)
    part = response.output[0].content[0]
    assert len(part.logprobs) == response.usage.output_tokens
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


@promise
def errors_are_the_right_exceptions() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 9}, "temperature"), ({"input": []}, "input"),
        ({"input": "word " * 20_000}, "input"), ({"max_output_tokens": 10**7}, "max_output_tokens"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ]  # fmt: skip
    for options, param in cases:
        try:
            respond(**options)
            raise AssertionError(f"{param} was taken")
        except openai.BadRequestError as error:
            assert error.param == param, error.body


@promise
def closing_a_stream_ends_the_request_in_the_server() -> None:
    before = num_aborted()
    with respond(stream=True, **LONG) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    until(lambda: num_aborted() > before)


@promise
async def async_responses_are_those_of_sync() -> None:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0) as other:
        whole, events = await asyncio.gather(
            other.responses.create(**SHORT), collect(other.responses.create(**SHORT, stream=True))
        )
        assert whole.output_text == events[-1].response.output_text == respond().output_text
        assert (await other.responses.retrieve(whole.id)).output_text == whole.output_text


async def collect(stream: Any) -> list[Any]:
    return [event async for event in await stream]


keep_promises()
