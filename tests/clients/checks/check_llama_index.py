"""llama-index with OpenAILike: chat, completions, streams, tools, structured output."""

# /// script
# dependencies = ["llama-index-llms-openai-like==0.8.1"]
# ///

from __future__ import annotations

from typing import Any, Literal

from checklist import API_KEY, URL, keep_promises, model_name, promise
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

OPTIONS: Any = {"model": model_name(), "api_base": f"{URL}/v1", "api_key": API_KEY,
                "context_window": 2048, "temperature": 0, "max_retries": 0}  # fmt: skip
chat = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=24, **OPTIONS)
patient = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=400, **OPTIONS)
plain = OpenAILike(is_chat_model=False, max_tokens=8, **OPTIONS)
QUESTION = [ChatMessage(role="user", content="Name three colours of the rainbow.")]
WEATHER = "How is the weather in Paris for 3 days?"


class LookUp(BaseModel):
    """Looks the weather up."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def look_up(city: str, days: int) -> str:
    """Looks the weather up."""
    return f"{days} sunny days in {city}"


TOOL = FunctionTool.from_defaults(look_up, fn_schema=LookUp)


@promise
def a_chat_answers() -> None:
    answer = chat.chat(QUESTION)
    assert answer.message.content
    assert chat.chat(QUESTION).message.content == answer.message.content


@promise
def a_stream_joins_to_the_whole_answer() -> None:
    *_, last = chat.stream_chat(QUESTION)
    assert last.message.content == chat.chat(QUESTION).message.content


@promise
async def async_answers_are_those_of_sync() -> None:
    assert (await chat.achat(QUESTION)).message.content == chat.chat(QUESTION).message.content


@promise
def text_completions_work() -> None:
    whole = plain.complete("The capital of France is").text
    *_, last = plain.stream_complete("The capital of France is")
    assert whole and last.text == whole


@promise
def a_required_tool_is_called_and_its_result_answered() -> None:
    answer = patient.chat_with_tools([TOOL], user_msg=WEATHER, tool_required=True)
    (call, *_) = patient.get_tool_calls_from_response(answer)
    assert call.tool_name == "look_up"
    result = TOOL(**LookUp(**call.tool_kwargs).model_dump())
    turns = [
        ChatMessage(role="user", content=WEATHER),
        answer.message,
        ChatMessage(
            role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id}
        ),
    ]
    assert chat.chat(turns).message.content


@promise
def streamed_calls_are_those_of_the_whole_answer() -> None:
    options: Any = {"user_msg": WEATHER, "tool_required": True}
    whole = patient.get_tool_calls_from_response(patient.chat_with_tools([TOOL], **options))
    *_, last = patient.stream_chat_with_tools([TOOL], **options)
    streamed = patient.get_tool_calls_from_response(last)
    assert [call.tool_kwargs for call in streamed] == [call.tool_kwargs for call in whole]


@promise
def structured_output_is_an_object() -> None:
    found = patient.structured_predict(LookUp, PromptTemplate(WEATHER))
    assert isinstance(found, LookUp)


keep_promises()
