"""Ollama's client for Python: chat and generate, whole and in lines, options, names, errors."""

# /// script
# dependencies = ["ollama==0.6.3"]
# ///

from __future__ import annotations

import asyncio
from typing import Any, Literal

import ollama
from checklist import API_KEY, URL, keep_promises, metric, post, promise, until
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]
OPTIONS = {"temperature": 0, "num_predict": 24}

client = Client(host=URL, headers={"authorization": f"Bearer {API_KEY}"})
MODEL = str(client.list().models[0].model)


def chat(**options: Any) -> Any:
    given = {"model": MODEL, "messages": QUESTION, "options": OPTIONS}
    return client.chat(**{**given, **options})


def generate(prompt: str = "The capital of France is", **options: Any) -> Any:
    return client.generate(**{"model": MODEL, "prompt": prompt, "options": OPTIONS, **options})


@promise
def the_model_is_listed_shown_and_running() -> None:
    (listed,) = client.list().models
    assert listed.model.endswith(":latest") and listed.size > 0 and listed.modified_at is not None
    assert listed.details.family == "llama" and listed.details.format == "gguf"
    shown = client.show(MODEL)
    assert "<|im_start|>" in shown.template and "completion" in shown.capabilities
    assert shown.modelinfo["llama.context_length"] >= 2048
    (running,) = client.ps().models
    assert running.digest == listed.digest and running.expires_at is not None


@promise
def a_chat_answers_with_figures() -> None:
    answer = chat()
    assert answer.message.role == "assistant" and answer.message.content
    assert answer.done and answer.done_reason in ("stop", "length")
    assert answer.prompt_eval_count > 5 and 1 <= answer.eval_count <= 24
    assert 0 < answer.prompt_eval_duration + answer.eval_duration <= answer.total_duration
    assert answer.model == MODEL and answer.created_at
    assert chat().message == answer.message


@promise
def lines_have_the_text_of_the_whole_chat() -> None:
    whole, parts = chat(), list(chat(stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count and len(parts) > 3


@promise
def a_conversation_is_that_of_openai() -> None:
    body = {"model": MODEL.removesuffix(":latest"), "messages": QUESTION, "temperature": 0}
    told = post("/v1/chat/completions", {**body, "max_tokens": 24})["choices"][0]["message"]
    assert chat().message.content == told["content"]


@promise
def generate_answers_and_completes() -> None:
    assert generate().response == chat(
        messages=[{"role": "user", "content": "The capital of France is"}]
    ).message.content  # fmt: skip
    raw = generate(raw=True)
    assert "Paris" in raw.response and raw.prompt_eval_count < generate().prompt_eval_count
    parts = list(generate(raw=True, stream=True))
    assert "".join(part.response for part in parts) == raw.response
    assert generate(system="Answer in French.").prompt_eval_count != generate().prompt_eval_count


@promise
def options_are_honoured() -> None:
    text = chat().message.content
    assert chat(options={**OPTIONS, "num_predict": 3}).eval_count == 3
    stopped = chat(options={**OPTIONS, "stop": [text[4:7]]})
    assert stopped.message.content == text.partition(text[4:7])[0]
    seeded = {"temperature": 1.5, "seed": 7, "num_predict": 12}
    assert chat(options=seeded).message == chat(options=seeded).message
    assert chat(options=ollama.Options(temperature=0, num_predict=4)).eval_count <= 4


@promise
def log_probabilities_come_with_tokens() -> None:
    answer = chat(logprobs=True, top_logprobs=2, options={**OPTIONS, "num_predict": 4})
    assert len(answer.logprobs) == answer.eval_count
    for entry in answer.logprobs:
        assert len(entry.top_logprobs) == 2 and entry.logprob <= 0


@promise
def an_empty_request_is_one_to_load() -> None:
    assert client.generate(model=MODEL).done_reason == "load"
    assert client.chat(model=MODEL, messages=[], keep_alive="1h").done_reason == "load"


@promise
def names_may_lack_their_tag() -> None:
    answer = chat(model=MODEL.removesuffix(":latest"))
    assert answer.message == chat().message and answer.model == MODEL.removesuffix(":latest")


@promise
def errors_have_a_status_and_a_reason() -> None:
    expect(404, "no-such-model", lambda: chat(model="no-such-model"))
    expect(400, "options.temperature", lambda: chat(options={"temperature": -1}))
    expect(400, "images", lambda: chat(messages=[{"role": "user", "images": [b"x"]}]))
    expect(400, "prompt", lambda: generate("word " * 20_000))
    expect(400, "think", lambda: chat(think=True))
    expect(400, "context", lambda: generate(context=[1, 2]))
    expect(404, "pulled", lambda: client.pull("x"))
    expect(404, "deleted", lambda: client.delete("x"))
    expect(400, "keep_alive", lambda: client.generate(model=MODEL, keep_alive=0))
    try:
        list(chat(model="no-such-model", stream=True))
    except ResponseError as error:
        assert error.status_code == 404
    else:
        raise AssertionError("no ResponseError")


def expect(status: int, said: str, call: Any) -> None:
    try:
        call()
    except ResponseError as error:
        assert error.status_code == status and said in error.error, error
        return
    raise AssertionError("no ResponseError")


@promise
def an_error_within_lines_is_raised() -> None:
    hurried = Client(
        host=URL,
        headers={"authorization": f"Bearer {API_KEY}", "x-request-timeout": "0.5"},
    )
    numbers = [{"role": "user", "content": "Count from 1 to 1000, one number per line."}]
    try:
        for _ in hurried.chat(MODEL, numbers, stream=True, options={"temperature": 0}):
            pass
    except ResponseError as error:
        assert "time" in error.error
        return
    raise AssertionError("the stream ended as if all were well")


@promise
def closing_a_stream_of_lines_ends_it_in_the_server() -> None:
    numbers = [{"role": "user", "content": "Count from 1 to 1000, one number per line."}]
    stream = chat(messages=numbers, stream=True, options={"num_predict": 6000})
    next(stream)
    stream.close()
    until(lambda: metric("chairlift:num_requests_running") == 0)


class Colours(BaseModel):
    """What an answer is to consist of."""

    first: Literal["red", "green", "blue"]
    second: Literal["red", "green", "blue"]


@promise
def answers_come_in_a_format() -> None:
    options = {"temperature": 0, "num_predict": 400}
    schema = Colours.model_json_schema()
    told = chat(format=schema, options=options).message.content
    assert Colours.model_validate_json(told)
    parts = chat(format=schema, options=options, stream=True)
    assert "".join(part.message.content for part in parts) == told
    assert generate(format="json").response.lstrip().startswith("{")


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: Its name.

    Returns:
      str: What it is like.
    """
    return f"sunny in {city}"


@promise
def tools_are_taken_and_their_calls_go_back() -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = chat(messages=asked, tools=[get_weather])
    assert answer.message.content or answer.message.tool_calls
    call = ollama.Message.ToolCall.Function(name="get_weather", arguments={"city": "Paris"})
    turn = ollama.Message(role="assistant", tool_calls=[ollama.Message.ToolCall(function=call)])
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")}
    told = chat(messages=[*asked, turn, result], tools=[get_weather])
    assert told.message.content and told.prompt_eval_count > answer.prompt_eval_count
    assert "tools" in client.show(MODEL).capabilities


@promise
def texts_become_vectors() -> None:
    texts = ["The sky is blue.", "The sky is azure.", "Buy two litres of milk."]
    answer = client.embed(MODEL, texts)
    near, other = (
        sum(a * b for a, b in zip(answer.embeddings[0], vector, strict=True))
        for vector in answer.embeddings[1:]
    )
    assert near > other and answer.prompt_eval_count > 12 and answer.total_duration > 0
    assert client.embed(MODEL, texts[0]).embeddings == answer.embeddings[:1]
    older = client.embeddings(MODEL, texts[0]).embedding
    length = sum(value * value for value in older) ** 0.5
    assert all(abs(a - b / length) < 1e-5 for a, b in zip(answer.embeddings[0], older, strict=True))
    expect(400, "dimensions", lambda: client.embed(MODEL, texts, dimensions=3))
    assert "embedding" in client.show(MODEL).capabilities


@promise
async def async_chats_are_those_of_sync() -> None:
    other = AsyncClient(host=URL, headers={"authorization": f"Bearer {API_KEY}"})
    prompts = [[{"role": "user", "content": f"Count to {index}."}] for index in range(2, 6)]
    told = await asyncio.gather(*(other.chat(MODEL, prompt, options=OPTIONS) for prompt in prompts))
    for prompt, answer in zip(prompts, told, strict=True):
        assert answer.message == chat(messages=prompt).message
        parts = [
            part async for part in await other.chat(MODEL, prompt, options=OPTIONS, stream=True)
        ]
        assert "".join(part.message.content for part in parts) == answer.message.content


keep_promises()
