"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from starlette.types import Receive, Scope, Send

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import ProcessedInput
from chairlift.server.chat_format import ChatFormat
from chairlift.server.disconnect import until_disconnect
from chairlift.server.exchange import Exchange, exchange_of, new_id
from chairlift.server.generation import Job, answer, deadline_of
from chairlift.server.json_body import BodyLimits, JsonObject
from chairlift.server.protocol.chat import ChatRequest
from chairlift.server.protocol.field_policy import REFUSED_IN_CHAT
from chairlift.server.protocol.strict_model import parse
from chairlift.server.request_reading import (
    book_fields,
    check_fits,
    log_prompts,
    process,
    read_body,
)
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving


class ChatCompletions:
    """The endpoint."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "chat"
        engine, served = serving.engine()
        serving.admission.check_open(exchange.key_name)
        with serving.lifecycle.in_flight():
            job = await self._read(engine, served, exchange, receive)
            await answer(serving, engine, exchange, job, receive, send)

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> Job:
        """What is to be done; the request's text itself is let go."""
        serving = self._serving
        limits = BodyLimits.of_one_text(serving.config.max_body_size, served.max_prompt_chars)
        async with read_body(serving, exchange, receive, limits, _understand) as request:
            served.check_name(request.model)
            without_effect = _without_effect(request, served)
            book_fields(serving, exchange, request, REFUSED_IN_CHAT, without_effect)
            serving.metrics.request_received(exchange)
            deadline_s = deadline_of(exchange, request.timeout, serving.config.request_timeout)
            serving.admission.check_time(exchange.key_name, deadline_s)
            id = new_id("chatcmpl")
            async with until_disconnect(receive):
                processed = await serving.in_text_thread(
                    _process, serving, engine, served, exchange, request, id
                )
        log_prompts(serving, exchange, [processed])
        return Job(
            requests=[processed],
            format=ChatFormat(
                request,
                served,
                id=id,
                created=int(time.time()),
                has_timings=serving.config.usage_timings,
            ),
            is_streaming=request.stream,
            priority=request.priority,
            deadline_s=deadline_s,
        )


def _understand(body: JsonObject) -> ChatRequest:
    request = parse(ChatRequest, body)
    request.check()
    return request


def _process(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: ChatRequest,
    id: str,
) -> ProcessedInput:
    """In a thread for text."""
    variables = dict(request.chat_template_kwargs)
    if request.reasoning_effort is not None:
        variables |= _reasoning_variables(request.reasoning_effort, served)
    text, token_ids = served.encode_messages(
        request.messages, add_generation_prompt=request.add_generation_prompt, **variables
    )
    params = request.sampling_params(
        served.defaults, max_tokens=request.asked_tokens, logprobs=request.num_logprobs
    )
    processed = process(
        serving,
        engine,
        exchange,
        {"prompt": text, "prompt_token_ids": token_ids},
        params,
        id=id,
        request=request,
    )
    check_fits(request, [processed], served, asked_tokens=request.asked_tokens)
    return processed


def _reasoning_variables(effort: str, served: ServedModel) -> dict[str, object]:
    """What the chat template understands of it."""
    if served.mentions("reasoning_effort"):
        return {"reasoning_effort": effort}
    return {"enable_thinking": effort != "none"} if served.mentions("enable_thinking") else {}


def _without_effect(request: ChatRequest, served: ServedModel) -> list[str]:
    names = []
    effort = request.reasoning_effort
    if effort is not None and not _reasoning_variables(effort, served):
        names.append("reasoning_effort")
    names += [
        f"chat_template_kwargs.{name}"
        for name in request.chat_template_kwargs
        if not served.mentions(name)
    ]
    for message in request.messages:
        names += [f"messages.{name}" for name in message.unknown_fields()]
    return names
