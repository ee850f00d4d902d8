"""openai-python: sync and async, streams, helpers, tools, parse, raw answers, errors, retries."""

# /// script
# dependencies = ["openai==3.57.0"]
# [tool.client]
# serve = ["--api-key", "sk-clients", "--max-num-seqs", "4", "--max-queued-requests", "4"]
# ///

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from typing import Any, Literal

import openai
from checklist import API_KEY, URL, keep_promises, metric, promise, until
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

SEATS = 4
"""So many run, and so many wait: the next one is told to come back."""
QUESTION: list[Any] = [{"role": "user", "content": "Name three colours of the rainbow."}]
LONG: dict[str, Any] = {"max_tokens": 6000, "extra_body": {"ignore_eos": True}}

client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0)
MODEL = client.models.list().data[0].id
TO_THE_COMMA: dict[str, Any] = {
    "model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 400, "stop": [","],
}  # fmt: skip


def async_client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0)


def chat(**options: Any) -> Any:
    given = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    return client.chat.completions.create(**{**given, **options})


def complete(prompt: Any = "The capital of France is", **options: Any) -> Any:
    given = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8}
    return client.completions.create(**{**given, **options})


def num_aborted() -> float:
    return metric("chairlift:requests_finished_total", reason="abort")


@promise
def models_are_listed_and_found() -> None:
    (model,) = client.models.list().data
    assert model.object == "model" and model.created > 0 and model.owned_by
    assert client.models.retrieve(model.id) == model


@promise
def a_chat_answers_with_usage_and_a_request_id() -> None:
    answer = chat()
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.refusal is None and choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 5 and 1 <= usage.completion_tokens <= 24
    assert answer._request_id and answer.system_fingerprint.startswith("fp_")
    again = chat()
    assert again.choices == answer.choices
    assert again.usage.prompt_tokens_details.cached_tokens > 0


@promise
def a_stream_has_the_text_of_the_whole_answer() -> None:
    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert last.choices == [] and last.usage.total_tokens == whole.usage.total_tokens
    assert parts[0].choices[0].delta.role == "assistant"
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    reasons = [part.choices[0].finish_reason for part in parts]
    assert reasons[-1] == whole.choices[0].finish_reason and set(reasons[:-1]) == {None}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


@promise
def the_stream_helper_accumulates() -> None:
    with client.chat.completions.stream(**TO_THE_COMMA) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion().choices[0]
    assert "".join(deltas) == final.message.content and final.finish_reason == "stop"
    assert final.message.content == chat(**TO_THE_COMMA).choices[0].message.content


@promise
def parse_takes_an_answer_without_a_format() -> None:
    parsed = client.chat.completions.parse(**TO_THE_COMMA)
    message = parsed.choices[0].message
    assert message.content == chat(**TO_THE_COMMA).choices[0].message.content
    assert message.parsed is None and parsed.choices[0].finish_reason == "stop"


@promise
def raw_answers_show_headers_and_lines() -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=4, extra_headers={"x-request-id": "my-own-1"}
    )
    assert raw.status_code == 200 and raw.request_id == "my-own-1"
    assert raw.headers["content-type"] == "application/json"
    assert int(raw.headers["openai-processing-ms"]) >= 0 and raw.retries_taken == 0
    assert raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=QUESTION, max_tokens=4, stream=True
    ) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = list(response.iter_lines())
    assert lines[0].startswith("data: {") and [line for line in lines if line][-1] == "data: [DONE]"


@promise
def content_comes_in_parts_and_roles_are_known() -> None:
    parts = [{"type": "text", "text": QUESTION[0]["content"]}]
    assert chat(messages=[{"role": "user", "content": parts}]).choices == chat().choices
    turns = [{"role": "developer", "content": "Be brief."}, *QUESTION]
    answer = chat(messages=turns, max_tokens=None, max_completion_tokens=6)
    assert answer.usage.completion_tokens <= 6
    assert answer.choices == chat(
        messages=[{"role": "system", "content": "Be brief."}, *QUESTION], max_tokens=6
    ).choices  # fmt: skip


@promise
def chat_logprobs_name_the_best_tokens() -> None:
    (choice,) = chat(logprobs=True, top_logprobs=3).choices
    content = choice.logprobs.content
    assert (
        b"".join(bytes(token.bytes) for token in content)
        .decode()
        .startswith(choice.message.content)
    )
    for token in content:
        best = token.top_logprobs
        assert len(best) == 3 and token.logprob <= 0
        assert [one.logprob for one in best] == sorted((one.logprob for one in best), reverse=True)
        assert (best[0].token, best[0].logprob) == (token.token, token.logprob)  # greedy


@promise
def several_choices_count_the_prompt_once() -> None:
    answer = chat(n=3, temperature=1, seed=5, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == chat(max_tokens=1).usage.prompt_tokens
    assert answer.choices == chat(n=3, temperature=1, seed=5, max_tokens=8).choices
    texts = ["", "", ""]
    for chunk in chat(n=3, temperature=1, seed=5, max_tokens=8, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


@promise
def completions_score_a_prompt() -> None:
    prompt = "The sky is blue and the grass is green"
    (choice,) = complete(prompt, echo=True, logprobs=2, max_tokens=1).choices
    figures = choice.logprobs
    lists = (figures.tokens, figures.token_logprobs, figures.top_logprobs, figures.text_offset)
    assert len({len(each) for each in lists}) == 1
    assert "".join(figures.tokens) == choice.text and choice.text.startswith(prompt)
    assert figures.token_logprobs[0] is None and figures.top_logprobs[0] is None
    for token, logprob, top in list(zip(*lists[:3], strict=True))[1:]:
        assert top[token] == logprob <= max(top.values())
    (scored,) = complete(prompt, echo=True, logprobs=2, max_tokens=0).choices
    assert scored.text == prompt
    assert scored.logprobs.token_logprobs == figures.token_logprobs[:-1]


@promise
def prompts_come_as_texts_and_tokens_in_order() -> None:
    texts = ["One, two,", "A, b,", "Red, green,"]
    many = complete(texts, n=2, temperature=1, seed=3)
    assert [choice.index for choice in many.choices] == list(range(6))
    for index, text in enumerate(texts):
        alone = complete(text, n=2, temperature=1, seed=3)
        own = many.choices[2 * index : 2 * index + 2]
        assert [one.text for one in alone.choices] == [one.text for one in own]
    ids = [[504, 3575, 282, 4649, 314], [2683, 28, 827, 28]]
    by_ids = complete(ids)
    assert [one.text for one in by_ids.choices] == [complete(i).choices[0].text for i in ids]


@promise
def completions_stream_echo_of_any_script() -> None:
    prompt = "naïve 🙂 日本語 สวัสดี:"
    whole = complete(prompt, echo=True, max_tokens=12)
    chunks = list(complete(prompt, echo=True, max_tokens=12, stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert whole.choices[0].text.startswith(prompt)
    assert {chunk.object for chunk in chunks} == {"text_completion"}


@promise
def stop_strings_end_a_text() -> None:
    full = complete("1, 2, 3, 4, 5,", max_tokens=16).choices[0].text
    stop = full[4:6]
    answer = complete("1, 2, 3, 4, 5,", max_tokens=16, stop=[stop]).choices[0]
    assert answer.text == full.partition(stop)[0] and answer.finish_reason == "stop"


@promise
def errors_are_the_right_exceptions() -> None:
    expect(openai.BadRequestError, 400, param="temperature", call=lambda: chat(temperature=9))
    expect(openai.BadRequestError, 400, param="messages", call=lambda: chat(messages=[]))
    expect(
        openai.BadRequestError, 400, param="suffix", code="unsupported_parameter",
        call=lambda: complete(suffix="end"),
    )  # fmt: skip
    expect(
        openai.BadRequestError, 400, code="context_length_exceeded",
        call=lambda: complete("word " * 20_000),
    )  # fmt: skip
    expect(
        openai.NotFoundError, 404, param="model", code="model_not_found",
        call=lambda: chat(model="no-such-model"),
    )  # fmt: skip
    expect(
        openai.NotFoundError, 404, param="model", code="model_not_found",
        call=lambda: client.models.retrieve("org/other"),
    )  # fmt: skip
    expect(openai.NotFoundError, 404, call=lambda: client.files.list())
    stranger = client.with_options(api_key="sk-wrong")
    expect(
        openai.AuthenticationError, 401, code="invalid_api_key",
        call=lambda: stranger.models.list(),
    )  # fmt: skip


def expect(
    kind: type[openai.APIStatusError],
    status: int,
    *,
    call: Any,
    param: str | None = None,
    code: str | None = None,
) -> None:
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind, error
        assert error.status_code == status and error.request_id
        assert error.code == code and (param is None or error.param == param), error.body
        return
    raise AssertionError(f"no {kind.__name__}")


@promise
def a_deadline_is_an_error_that_is_not_tried_again() -> None:
    started = metric("chairlift:http_requests_total", status="504")
    patient = client.with_options(max_retries=3)
    expect(
        openai.InternalServerError, 504, code="deadline_exceeded",
        call=lambda: patient.completions.create(
            model=MODEL, prompt="Once", max_tokens=1500,
            extra_body={"timeout": 0.2, "ignore_eos": True},
        ),
    )  # fmt: skip
    assert metric("chairlift:http_requests_total", status="504") == started + 1


@promise
def an_error_in_a_stream_is_raised() -> None:
    options = {**LONG, "extra_body": {"ignore_eos": True, "timeout": 1.0}}
    got = 0
    try:
        for _ in chat(stream=True, **options):
            got += 1
    except openai.APIError as error:
        assert error.code == "deadline_exceeded", error
        assert got or isinstance(error, openai.InternalServerError)
        return
    raise AssertionError("the stream ended as if all were well")


@promise
def a_client_timeout_ends_the_request_in_the_server() -> None:
    before = num_aborted()
    try:
        client.with_options(timeout=0.5).completions.create(model=MODEL, prompt="Once", **LONG)
    except openai.APITimeoutError:
        until(lambda: num_aborted() > before)
        return
    raise AssertionError("no APITimeoutError")


@promise
def closing_a_stream_ends_the_request_in_the_server() -> None:
    before = num_aborted()
    with chat(stream=True, **LONG) as stream:
        next(iter(stream))
    until(lambda: num_aborted() > before)
    until(lambda: metric("chairlift:num_requests_running") == 0)


@promise
def a_full_queue_is_429_and_retries_get_through() -> None:
    before = num_aborted()
    with ExitStack() as streams:
        opened: list[Any] = []

        def hold() -> None:
            opened.append(streams.enter_context(chat(stream=True, **LONG)))

        threads = [threading.Thread(target=hold) for _ in range(2 * SEATS)]
        for thread in threads[:SEATS]:
            thread.start()
        until(lambda: len(opened) == SEATS)
        for thread in threads[SEATS:]:
            thread.start()
        until(lambda: metric("chairlift:num_requests_waiting") == SEATS)
        try:
            chat(max_tokens=1)
            raise AssertionError("the queue took one more")
        except openai.RateLimitError as error:
            assert error.code == "queue_full"
            assert int(error.response.headers["retry-after"]) >= 1
        answers: list[Any] = []
        patient = client.with_options(max_retries=8)
        waiting = threading.Thread(
            target=lambda: answers.append(
                patient.chat.completions.with_raw_response.create(
                    model=MODEL, messages=QUESTION, temperature=0, max_tokens=4
                )
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
    assert answers[0].retries_taken >= 1
    assert answers[0].parse().choices == chat(max_tokens=4).choices
    until(lambda: num_aborted() > before)


@promise
async def async_answers_are_those_of_sync() -> None:
    async with async_client() as other:
        prompts = [f"Number {index} is" for index in range(6)]

        async def ask(prompt: str) -> str:
            answer = await other.completions.create(
                model=MODEL, prompt=prompt, temperature=0, max_tokens=8
            )
            return str(answer.choices[0].text)

        together = await asyncio.gather(*map(ask, prompts[:4]))
    assert together == [complete(prompt).choices[0].text for prompt in prompts[:4]]


@promise
async def async_streams_share_one_connection() -> None:
    whole = chat().choices[0].message.content
    places = set()
    async with async_client() as other:
        for _ in range(3):
            stream = await other.chat.completions.create(
                model=MODEL, messages=QUESTION, temperature=0, max_tokens=24, stream=True
            )
            network = stream.response.extensions["network_stream"]
            places.add(network.get_extra_info("client_addr"))
            texts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert "".join(texts) == whole
    assert len(places) == 1, "the client dropped a connection after [DONE]"


@promise
async def the_async_stream_helper_accumulates() -> None:
    async with (
        async_client() as other,
        other.chat.completions.stream(**TO_THE_COMMA) as stream,
    ):
        async for _ in stream:
            pass
        final = (await stream.get_final_completion()).choices[0]
    assert final.message.content == chat(**TO_THE_COMMA).choices[0].message.content


@promise
async def cancelling_a_task_ends_its_request_in_the_server() -> None:
    before = num_aborted()
    async with async_client() as other:
        task = asyncio.create_task(
            other.completions.create(model=MODEL, prompt="Once", temperature=0, **LONG)
        )
        await asyncio.to_thread(until, lambda: metric("chairlift:num_requests_running") > 0)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    until(lambda: num_aborted() > before)


@promise
async def vectors_are_the_same_in_every_form_and_encoding() -> None:
    texts = ["A cat sits on the mat.", "A kitten lies on the rug.", "Shares fell sharply today."]
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert [item.index for item in answer.data] == [0, 1, 2]
    cat, kitten, shares = vectors = [item.embedding for item in answer.data]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 15

    def cosine(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert abs(cosine(cat, cat) - 1) < 1e-5 and cosine(cat, kitten) > cosine(cat, shares)
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [item.embedding for item in floats.data] == vectors
    async with async_client() as other:
        again = await other.embeddings.create(model=MODEL, input=texts[1])
    assert again.data[0].embedding == kitten
    try:
        client.embeddings.create(model=MODEL, input=["a", ""])
    except openai.BadRequestError as error:
        assert error.param == "input[1]"
    else:
        raise AssertionError("an empty input is embedded")


@promise
def a_connection_is_kept_and_reused() -> None:
    places = set()
    for _ in range(3):
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=QUESTION, max_tokens=1
        )
        network = raw.http_response.extensions["network_stream"]
        places.add(network.get_extra_info("client_addr"))
        time.sleep(0.01)
    assert len(places) == 1


class LookUp(BaseModel):
    """Looks the weather up."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


WEATHER: list[Any] = [{"role": "user", "content": "How is the weather in Paris for 3 days?"}]
TOOL = openai.pydantic_function_tool(LookUp, name="look_up")
PLAIN_TOOL: Any = {
    "type": "function",
    "function": {"name": "look_up", "parameters": TOOL["function"]["parameters"]},
}
NAMED: Any = {"type": "function", "function": {"name": "look_up"}}


def ask(**options: Any) -> Any:
    given = {"messages": WEATHER, "tools": [PLAIN_TOOL], "max_tokens": 400, **options}
    return chat(**given)


@promise
def a_required_tool_is_called_with_arguments_that_fit() -> None:
    (choice,) = ask(tool_choice="required").choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.tool_calls and len({c.id for c in choice.message.tool_calls}) >= 1
    for call in choice.message.tool_calls:
        assert call.type == "function" and call.function.name == "look_up"
        LookUp.model_validate_json(call.function.arguments)


@promise
def a_named_tool_is_called_once() -> None:
    (choice,) = ask(tool_choice=NAMED).choices
    assert choice.finish_reason == "stop" and len(choice.message.tool_calls) == 1


@promise
def a_tools_result_is_answered() -> None:
    message = ask(tool_choice=NAMED).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny"}
    answer = ask(messages=[*WEATHER, message, result], max_tokens=24)
    assert answer.choices[0].message.content
    refused = ask(tool_choice="none", max_tokens=8).choices[0].message
    assert refused.content and refused.tool_calls is None


@promise
def streamed_calls_are_those_of_a_plain_answer() -> None:
    options: Any = {
        "model": MODEL, "messages": WEATHER, "tools": [PLAIN_TOOL], "temperature": 0,
        "max_tokens": 400, "tool_choice": "required",
    }  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0].message.tool_calls
    with client.chat.completions.stream(**options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert [c.function.arguments for c in final.message.tool_calls or ()] == [
        c.function.arguments for c in whole or ()
    ]
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == len(whole or ())


@promise
def parse_gives_strict_calls_as_objects() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=WEATHER, tools=[TOOL], tool_choice="required", temperature=0,
        max_tokens=400, parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, LookUp)


@promise
def parse_gives_an_answer_as_an_object() -> None:
    options: Any = {"model": MODEL, "messages": WEATHER, "temperature": 0, "max_tokens": 400}
    answer = client.chat.completions.parse(response_format=LookUp, **options)
    assert isinstance(answer.choices[0].message.parsed, LookUp)
    with client.chat.completions.stream(response_format=LookUp, **options) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0].message
    assert final.parsed == answer.choices[0].message.parsed


@promise
def bad_tools_are_refused() -> None:
    wrong: Any = {"type": "function", "function": {"name": "not a name"}}
    expect(
        openai.BadRequestError, 400, param="tools[0].function.name",
        call=lambda: ask(tools=[wrong]),
    )  # fmt: skip
    expect(
        openai.BadRequestError, 400, param="tool_choice",
        call=lambda: ask(tool_choice={"type": "function", "function": {"name": "other"}}),
    )  # fmt: skip


keep_promises()
