"""pydantic-ai: text, objects by call and by schema, tools, streams, usage."""

# /// script
# dependencies = ["pydantic-ai-slim[openai]==2.68.0"]
# ///

from __future__ import annotations

from typing import Any, Literal

from checklist import API_KEY, URL, keep_promises, model_name, promise
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

model = OpenAIChatModel(
    model_name(), provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=API_KEY)
)
SETTINGS: Any = {"temperature": 0, "max_tokens": 400}
QUESTION = "Name three colours of the rainbow."
WEATHER = "How is the weather in Paris for 3 days?"


class LookUp(BaseModel):
    """Looks the weather up."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


@promise
def an_agent_answers_in_words() -> None:
    agent = Agent(model, model_settings={**SETTINGS, "max_tokens": 24}, instructions="Be brief.")
    result = agent.run_sync(QUESTION)
    assert result.output and result.usage.output_tokens >= 1
    assert agent.run_sync(QUESTION).output == result.output


@promise
async def a_stream_joins_to_the_whole_answer() -> None:
    agent = Agent(model, model_settings={**SETTINGS, "max_tokens": 24})
    async with agent.run_stream(QUESTION) as result:
        text = "".join([piece async for piece in result.stream_text(delta=True)])
    assert text == (await agent.run(QUESTION)).output


@promise
def an_object_by_a_call() -> None:
    agent = Agent(model, output_type=ToolOutput(LookUp), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(WEATHER).output, LookUp)


@promise
def an_object_by_a_schema() -> None:
    agent = Agent(model, output_type=NativeOutput(LookUp), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(WEATHER).output, LookUp)


@promise
async def a_streamed_object_is_the_whole_one() -> None:
    agent = Agent(model, output_type=ToolOutput(LookUp), model_settings=SETTINGS)
    async with agent.run_stream(WEATHER) as result:
        output = await result.get_output()
    assert output == (await agent.run(WEATHER)).output


@promise
def a_tool_is_run_where_the_model_must_call_one() -> None:
    """It may call the tool or the output, and has to call one of them."""
    seen: list[str] = []
    agent = Agent(model, output_type=ToolOutput(LookUp), model_settings=SETTINGS)

    @agent.tool_plain
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather in a city."""
        seen.append(city)
        return "sunny"

    try:
        result = agent.run_sync(WEATHER, usage_limits=UsageLimits(request_limit=4))
    except Exception as error:
        assert seen and "request_limit" in str(error), error
        return
    calls = [
        part
        for message in result.all_messages()
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    assert calls and len([c for c in calls if c.tool_name == "weather"]) == len(seen)


keep_promises()
