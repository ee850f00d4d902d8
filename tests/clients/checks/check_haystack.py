"""haystack: chats over both of OpenAI's APIs, streams, tools, an agent, schemas, vectors."""

# /// script
# dependencies = ["haystack-ai==3.4.1"]
# ///

from __future__ import annotations

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from typing import Annotated, Any, Literal

import openai
from checklist import API_KEY, URL, keep_promises, model_name, promise
from haystack import Document, Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel, ConfigDict, Field

OPTIONS: Any = {
    "model": model_name(),
    "api_base_url": f"{URL}/v1",
    "api_key": Secret.from_token(API_KEY),
    "max_retries": 0,
}
chat = OpenAIChatGenerator(generation_kwargs={"temperature": 0, "max_tokens": 24}, **OPTIONS)
patient = OpenAIChatGenerator(generation_kwargs={"temperature": 0, "max_tokens": 400}, **OPTIONS)
responses = OpenAIResponsesChatGenerator(
    generation_kwargs={"temperature": 0, "max_output_tokens": 24}, **OPTIONS
)
QUESTION = [ChatMessage.from_user("Name three colours of the rainbow.")]
WEATHER = [ChatMessage.from_user("How is the weather in Paris for 3 days?")]


class LookUp(BaseModel):
    """Looks the weather up."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


@tool
def look_up(
    city: Annotated[Literal["Paris", "Rome"], "where"], days: Annotated[int, "for how long"]
) -> str:
    """Looks the weather up."""
    return f"{days} sunny days in {city}"


def answer(generator: Any, messages: Any = QUESTION, **options: Any) -> ChatMessage:
    (reply,) = generator.run(messages, **options)["replies"]
    assert isinstance(reply, ChatMessage)
    return reply


@promise
def a_chat_answers_with_usage() -> None:
    reply = answer(chat)
    assert reply.text and reply.meta["finish_reason"] in ("stop", "length")
    assert 1 <= reply.meta["usage"]["completion_tokens"] <= 24


@promise
def a_stream_joins_to_the_whole_answer() -> None:
    for generator in (chat, responses):
        pieces: list[StreamingChunk] = []
        streamed = answer(generator, streaming_callback=pieces.append)
        assert len(pieces) > 2
        assert streamed.text == "".join(piece.content for piece in pieces) == answer(chat).text


@promise
async def async_answers_are_those_of_sync() -> None:
    (reply,) = (await chat.run_async(QUESTION))["replies"]
    assert reply.text == answer(chat).text


@promise
def responses_answer_as_chats_do() -> None:
    reply = answer(responses)
    assert reply.text == answer(chat).text and reply.meta["usage"]["output_tokens"] >= 1


@promise
def a_pipeline_fills_its_template() -> None:
    pipeline = Pipeline()
    template = [ChatMessage.from_user("Name three {{ what }} of the rainbow.")]
    pipeline.add_component("prompt", ChatPromptBuilder(template, required_variables=["what"]))
    pipeline.add_component("chat", chat)
    pipeline.connect("prompt.prompt", "chat.messages")
    (reply,) = pipeline.run({"prompt": {"what": "colours"}})["chat"]["replies"]
    assert reply.text == answer(chat).text


@promise
def a_required_tool_is_called_and_its_result_answered() -> None:
    required = {"tool_choice": "required"}
    reply = answer(patient, WEATHER, tools=[look_up], generation_kwargs=required)
    assert reply.tool_calls and reply.tool_calls[0].tool_name == "look_up"
    results = [
        ChatMessage.from_tool(look_up.invoke(**call.arguments), origin=call)
        for call in reply.tool_calls
    ]
    assert answer(chat, [*WEATHER, reply, *results], tools=[look_up]).text


@promise
def streamed_calls_are_those_of_the_whole_answer() -> None:
    required = {"tool_choice": "required"}
    options: Any = {"tools": [look_up], "tools_strict": True, "generation_kwargs": required}
    whole = answer(patient, WEATHER, **options).tool_calls
    streamed = answer(patient, WEATHER, streaming_callback=lambda chunk: None, **options).tool_calls
    assert whole and [call.arguments for call in streamed] == [call.arguments for call in whole]


@promise
def an_agent_runs_the_tool_it_must_call() -> None:
    must = OpenAIChatGenerator(
        generation_kwargs={"temperature": 0, "max_tokens": 400, "tool_choice": "required"},
        **OPTIONS,
    )
    agent = Agent(chat_generator=must, tools=[look_up], exit_conditions=["look_up"])
    messages = agent.run(WEATHER)["messages"]
    results = [result for message in messages for result in message.tool_call_results]
    assert results and not any(result.error for result in results)
    assert all("sunny" in str(result.result) for result in results)


@promise
def an_answer_fits_its_schema() -> None:
    reply = answer(patient, WEATHER, generation_kwargs={"response_format": LookUp})
    assert reply.text and LookUp.model_validate_json(reply.text)


@promise
def documents_and_queries_become_vectors() -> None:
    texts = ["A cat sits on the mat.", "Snow falls on the hills."]
    documents = OpenAIDocumentEmbedder(batch_size=1, progress_bar=False, **OPTIONS).run(
        [Document(content=text) for text in texts]
    )["documents"]
    query = OpenAITextEmbedder(**OPTIONS).run(texts[1])["embedding"]
    assert len(query) > 100 and documents[1].embedding == query != documents[0].embedding


@promise
def errors_are_raised() -> None:
    try:
        answer(chat, generation_kwargs={"temperature": 9})
    except openai.BadRequestError as error:
        assert error.param == "temperature"
        return
    raise AssertionError("no BadRequestError")


keep_promises()
