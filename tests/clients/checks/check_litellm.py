"""litellm over its hosted_vllm and openai providers, and over those of other dialects."""

# /// script
# dependencies = ["litellm==1.110.2"]
# ///

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices

import json
from typing import Any, Literal

import litellm
from checklist import API_KEY, URL, keep_promises, model_name, promise
from pydantic import BaseModel, Field

MODEL = model_name()
QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]
WEATHER = [{"role": "user", "content": "How is the weather in Paris for 3 days?"}]


class LookUp(BaseModel):
    """Looks the weather up."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": LookUp.model_json_schema()},
}


def ask(messages: Any = QUESTION, provider: str = "hosted_vllm", **options: Any) -> Any:
    given = {"temperature": 0, "max_tokens": 24, **options}
    return litellm.completion(
        model=f"{provider}/{MODEL}", messages=messages, api_base=f"{URL}/v1", api_key=API_KEY,
        num_retries=0, **given,
    )  # fmt: skip


@promise
def a_chat_answers_with_usage() -> None:
    for provider in ("hosted_vllm", "openai"):
        answer = ask(provider=provider)
        assert answer.choices[0].message.content and answer.usage.completion_tokens >= 1


@promise
def a_stream_joins_to_the_whole_answer() -> None:
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask().choices[0].message.content
    rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert rebuilt is not None and rebuilt.usage.completion_tokens >= 1


@promise
async def async_answers_are_those_of_sync() -> None:
    answer = await litellm.acompletion(
        model=f"hosted_vllm/{MODEL}", messages=QUESTION, api_base=f"{URL}/v1", api_key=API_KEY,
        temperature=0, max_tokens=24,
    )  # fmt: skip
    assert answer.choices[0].message.content == ask().choices[0].message.content


@promise
def a_required_tool_is_called_and_its_result_answered() -> None:
    options: Any = {"tools": [TOOL], "max_tokens": 400}
    choice = ask(WEATHER, tool_choice="required", **options).choices[0]
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        LookUp.model_validate_json(call.function.arguments)
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        for call in choice.message.tool_calls
    ]
    turns = [*WEATHER, choice.message.model_dump(), *results]
    assert ask(turns, tools=[TOOL]).choices[0].message.content


@promise
def streamed_calls_are_those_of_the_whole_answer() -> None:
    options: Any = {"tools": [TOOL], "max_tokens": 400, "tool_choice": "required"}
    whole = ask(WEATHER, **options).choices[0].message.tool_calls
    chunks = list(ask(WEATHER, stream=True, **options))
    rebuilt: Any = litellm.stream_chunk_builder(chunks, messages=WEATHER)
    streamed = rebuilt.choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [
        call.function.arguments for call in whole
    ]


@promise
def an_answer_fits_its_schema() -> None:
    answer = ask(WEATHER, response_format=LookUp, max_tokens=400)
    LookUp.model_validate(json.loads(answer.choices[0].message.content))


@promise
def text_completions_work() -> None:
    answer: Any = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="The capital of France is",
        api_base=f"{URL}/v1", api_key=API_KEY, max_tokens=8, temperature=0,
    )  # fmt: skip
    assert answer.choices[0].text


@promise
def errors_are_of_the_right_kind() -> None:
    try:
        ask(temperature=9)
    except litellm.BadRequestError as error:
        assert error.status_code == 400
    else:
        raise AssertionError("no BadRequestError")


@promise
def other_dialects_answer_the_same() -> None:
    expected = ask(max_tokens=12).choices[0].message.content
    for provider in ("anthropic", "ollama_chat"):
        given: dict[str, Any] = {"model": f"{provider}/{MODEL}", "api_base": URL}
        given |= {"api_key": API_KEY, "temperature": 0, "max_tokens": 12, "num_retries": 0}
        answer = litellm.completion(messages=QUESTION, **given)
        assert answer.choices[0].message.content == expected, provider
        assert answer.usage.completion_tokens >= 1
        chunks = litellm.completion(messages=QUESTION, stream=True, **given)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == expected, provider
    told = litellm.embedding(model=f"ollama/{MODEL}", api_base=URL, input=["a", "b"])
    assert len(told.data) == 2 and len(told.data[0]["embedding"]) > 100


keep_promises()
