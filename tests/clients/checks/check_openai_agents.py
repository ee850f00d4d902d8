"""openai-agents over responses: a run, a stream, a tool, structured output, a session."""

# /// script
# dependencies = ["openai-agents==0.24.0"]
# ///

from __future__ import annotations

from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from checklist import API_KEY, URL, keep_promises, promise
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

set_tracing_disabled(True)  # traces would go to the vendor's own servers
MODEL = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY).models.list().data[0].id
ONE_CALL = {"tool_choice": "required", "parallel_tool_calls": False}
asked: list[str] = []


def model() -> OpenAIResponsesModel:
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0)
    return OpenAIResponsesModel(model=MODEL, openai_client=client)


def agent(**options: Any) -> Agent[Any]:
    brief = {"temperature": 0, "max_tokens": 200, "extra_body": {"stop": ["."]}}
    settings = {**brief, **options.pop("settings", {})}
    return Agent(
        name="guide", instructions="Answer briefly.", model=model(),
        model_settings=ModelSettings(**settings), **options,
    )  # fmt: skip


@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"It is sunny in {city}."


class Answer(BaseModel):
    """What is wanted."""

    is_warm: bool


@promise
async def an_agent_answers() -> None:
    result = await Runner.run(agent(), "Name a colour.")
    assert result.final_output
    again = await Runner.run(agent(), "Name a colour.")
    assert again.final_output == result.final_output


@promise
async def a_streamed_run_has_the_text_of_the_whole() -> None:
    whole = await Runner.run(agent(), "Name a colour.")
    result = Runner.run_streamed(agent(), "Name a colour.")
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(pieces) == result.final_output == whole.final_output


@promise
async def a_tool_is_run_and_its_output_goes_back() -> None:
    asked.clear()
    one = agent(tools=[get_weather], settings=ONE_CALL)
    result = await Runner.run(one, "What is the weather in Paris?")
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and len(asked) == 1
    assert result.final_output and len(result.raw_responses) >= 2


@promise
async def a_tool_is_run_from_a_stream() -> None:
    asked.clear()
    one = agent(tools=[get_weather], settings=ONE_CALL)
    result = Runner.run_streamed(one, "What is the weather in Paris?")
    names = [event.name async for event in result.stream_events()
             if event.type == "run_item_stream_event"]  # fmt: skip
    assert names[:2] == ["tool_called", "tool_output"] and asked and result.final_output


@promise
async def an_output_type_is_kept_to() -> None:
    result = await Runner.run(agent(output_type=Answer), "Is red warm?")
    assert isinstance(result.final_output, Answer)


@promise
async def a_conversation_is_kept_here_or_there() -> None:
    first = await Runner.run(agent(), "My name is Ada.")
    again = first.to_input_list() + [{"role": "user", "content": "What is my name?"}]
    spelled = await Runner.run(agent(), again)
    followed = await Runner.run(
        agent(), "What is my name?", previous_response_id=first.last_response_id
    )
    assert followed.final_output == spelled.final_output
    session = SQLiteSession("one")
    await Runner.run(agent(), "My name is Ada.", session=session)
    remembered = await Runner.run(agent(), "What is my name?", session=session)
    assert remembered.final_output == spelled.final_output


keep_promises()
