"""smolagents: a model whole and streamed, stops, agents that call tools or write code."""

# /// script
# dependencies = ["smolagents[openai]==1.26.0"]
# ///

from __future__ import annotations

import json
from typing import Any

import openai
from checklist import API_KEY, URL, keep_promises, model_name, promise
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from smolagents.agents import ActionStep, LogLevel
from smolagents.models import agglomerate_stream_deltas

OPTIONS: Any = {
    "model_id": model_name(),
    "api_base": f"{URL}/v1",
    "api_key": API_KEY,
    "client_kwargs": {"max_retries": 0},
    "temperature": 0,
}
chat = OpenAIModel(max_tokens=24, **OPTIONS)
patient = OpenAIModel(max_tokens=400, **OPTIONS)
careful = OpenAIModel(max_tokens=400, parallel_tool_calls=False, **OPTIONS)
QUESTION: Any = [{"role": "user", "content": "Name three colours of the rainbow."}]
WEATHER: Any = [{"role": "user", "content": "How is the weather in Paris for 3 days?"}]


@tool
def look_up(city: str, days: int) -> str:
    """Looks the weather up.

    Args:
        city: Where.
        days: For how long.
    """
    return f"{days} sunny days in {city}"


def steps(agent: Any) -> list[ActionStep]:
    return [step for step in agent.memory.steps if isinstance(step, ActionStep)]


@promise
def a_model_answers_with_usage() -> None:
    answer = chat.generate(QUESTION)
    assert answer.content and answer.token_usage
    assert 1 <= answer.token_usage.output_tokens <= 24 and answer.token_usage.input_tokens > 5


@promise
def a_stream_joins_to_the_whole_answer() -> None:
    streamed = agglomerate_stream_deltas(list(chat.generate_stream(QUESTION)))
    whole = chat.generate(QUESTION)
    assert streamed.content == whole.content
    assert streamed.token_usage == whole.token_usage


@promise
def stop_sequences_stop() -> None:
    text = str(chat.generate(QUESTION).content)
    word = text.split()[2]
    assert chat.generate(QUESTION, stop_sequences=[word]).content == text.partition(word)[0]


@promise
def a_tool_must_be_called() -> None:
    answer = patient.generate(WEATHER, tools_to_call_from=[look_up])
    assert answer.tool_calls and answer.tool_calls[0].function.name == "look_up"
    arguments = json.loads(str(answer.tool_calls[0].function.arguments))
    assert isinstance(arguments["city"], str) and isinstance(arguments["days"], int)


@promise
def streamed_calls_are_those_of_the_whole_answer() -> None:
    deltas = list(patient.generate_stream(WEATHER, tools_to_call_from=[look_up]))
    streamed = agglomerate_stream_deltas(deltas).tool_calls
    whole = patient.generate(WEATHER, tools_to_call_from=[look_up]).tool_calls
    assert streamed and whole
    assert [call.function.arguments for call in streamed] == [
        call.function.arguments for call in whole
    ]


@promise
def an_agent_calls_one_tool_in_a_step() -> None:
    """It must call the tool or give its final answer, which is a tool too."""
    for is_streaming in (False, True):
        agent = ToolCallingAgent(
            tools=[look_up], model=careful, max_steps=2, stream_outputs=is_streaming,
            verbosity_level=LogLevel.OFF,
        )  # fmt: skip
        agent.run(WEATHER[0]["content"])
        called = [step.tool_calls for step in steps(agent) if step.tool_calls]
        assert called, [step.error for step in steps(agent)]
        for calls in called:
            assert len(calls) == 1 and calls[0].name in ("look_up", "final_answer"), calls


@promise
def an_agent_writes_code_as_an_object() -> None:
    agent = CodeAgent(
        tools=[], model=patient, max_steps=1, use_structured_outputs_internally=True,
        verbosity_level=LogLevel.OFF,
    )  # fmt: skip
    agent.run("How much is 6 times 7?")
    first = steps(agent)[0]
    assert first.model_output_message is not None and first.token_usage is not None
    text = str(first.model_output_message.content)
    if first.token_usage.output_tokens < 400:  # else it is the beginning of one
        assert set(json.loads(text)) == {"thought", "code"}
    assert text.lstrip().startswith("{")


@promise
def errors_are_raised() -> None:
    try:
        chat.generate(QUESTION, top_p=9)
    except openai.BadRequestError as error:
        assert error.param == "top_p"
        return
    raise AssertionError("no BadRequestError")


keep_promises()
