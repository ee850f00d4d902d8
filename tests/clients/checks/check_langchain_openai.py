"""langchain-openai: chat, streams, tools, structured output, errors."""

# /// script
# dependencies = ["langchain-openai==1.7.4"]
# ///

from __future__ import annotations

from typing import Any, Literal

import openai
from checklist import API_KEY, URL, keep_promises, model_name, promise
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

MODEL = model_name()
OPTIONS: Any = {"base_url": f"{URL}/v1", "api_key": API_KEY, "model": MODEL, "temperature": 0,
                "max_retries": 0}  # fmt: skip
chat = ChatOpenAI(max_tokens=24, stream_usage=True, **OPTIONS)
patient = ChatOpenAI(max_tokens=400, **OPTIONS)
QUESTION = "Name three colours of the rainbow."
WEATHER = "How is the weather in Paris for 3 days?"


class LookUp(BaseModel):
    """Looks the weather up."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


@tool(args_schema=LookUp)
def look_up(city: str, days: int) -> str:
    """Looks the weather up."""
    return f"{days} sunny days in {city}"


@promise
def a_chat_answers_with_usage() -> None:
    answer = chat.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert answer.content and answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] >= 1
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


@promise
def a_stream_joins_to_the_whole_answer() -> None:
    chunks = list(chat.stream(QUESTION))
    assert "".join(str(chunk.content) for chunk in chunks) == chat.invoke(QUESTION).content
    assert any(chunk.usage_metadata for chunk in chunks if isinstance(chunk, AIMessageChunk))


@promise
async def several_at_once_are_as_one_alone() -> None:
    prompts = [f"Number {index} is" for index in range(4)]
    together = await chat.abatch(prompts)
    assert [answer.content for answer in together] == [
        chat.invoke(prompt).content for prompt in prompts
    ]


@promise
def a_required_tool_is_called_and_its_result_answered() -> None:
    bound = patient.bind_tools([look_up], tool_choice="any")
    question = HumanMessage(WEATHER)
    answer = bound.invoke([question])
    call, *_ = answer.tool_calls
    assert not answer.invalid_tool_calls and call["name"] == "look_up"
    results = [look_up.invoke(call) for call in answer.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    assert "sunny" in str(results[0].content)
    assert chat.bind_tools([look_up]).invoke([question, answer, *results]).content


@promise
def streamed_calls_are_those_of_the_whole_answer() -> None:
    bound = patient.bind_tools([look_up], tool_choice="look_up", parallel_tool_calls=False)
    joined: Any = None
    for chunk in bound.stream(WEATHER):
        joined = chunk if joined is None else joined + chunk
    whole = bound.invoke(WEATHER).tool_calls
    assert [call["args"] for call in joined.tool_calls] == [call["args"] for call in whole]


@promise
def structured_output_by_schema_and_by_call() -> None:
    for method in ("json_schema", "function_calling"):
        model = patient.with_structured_output(LookUp, method=method)
        assert isinstance(model.invoke(WEATHER), LookUp), method


@promise
def text_completions_work() -> None:
    assert OpenAI(max_tokens=8, **OPTIONS).invoke("The capital of France is")


@promise
def errors_are_raised() -> None:
    try:
        chat.invoke(QUESTION, temperature=9)
    except openai.BadRequestError as error:
        assert error.param == "temperature"
        return
    raise AssertionError("no BadRequestError")


keep_promises()
