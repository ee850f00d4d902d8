"""From a chat request, in whatever dialect it came, to the engine's work for it.

Other dialects say the same as a body of /v1/chat/completions; from there on there is one path.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import ProcessedInput
from chairlift.server.answer_parts import PlainReader, ReaderFactory
from chairlift.server.disconnect import until_disconnect
from chairlift.server.exchange import Exchange
from chairlift.server.generation import AnswerFormat, Job, deadline_of
from chairlift.server.json_body import JsonObject
from chairlift.server.protocol.chat import ChatRequest
from chairlift.server.protocol.field_policy import REFUSED_IN_CHAT
from chairlift.server.protocol.strict_model import parse
from chairlift.server.request_reading import (
    book_fields,
    check_fits,
    compile_grammar,
    log_prompts,
    process,
)
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWork:
    """A chat request that has been understood and tokenized."""

    request: ChatRequest
    processed: ProcessedInput
    new_reader: ReaderFactory
    """Reads the parts of one answer."""
    deadline_s: float | None

    def job(self, format: AnswerFormat) -> Job:
        """To be answered in this format."""
        return Job(
            requests=[self.processed],
            format=format,
            is_streaming=self.request.stream,
            priority=self.request.priority,
            deadline_s=self.deadline_s,
        )


def chat_request(body: JsonObject) -> ChatRequest:
    """Raises `ApiError`, naming the field."""
    request = parse(ChatRequest, body)
    request.check()
    return request


async def chat_work(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: ChatRequest,
    receive: Receive,
    *,
    id: str,
    ends_at_context: bool = False,
) -> ChatWork:
    """Check and tokenize, off the event loop.  `id`: the engine's name for it.

    `ends_at_context`: where the context has no room for as many tokens as were asked for, the
    answer is shorter, rather than the request refused.
    Books the fields that change nothing.  Raises `ApiError`, `RequestError` and `ClientClosed`.
    """
    served.check_name(request.model)
    book_fields(serving, exchange, request, REFUSED_IN_CHAT, _without_effect(request, served))
    serving.metrics.request_received(exchange)
    deadline_s = deadline_of(exchange, request.timeout, serving.config.request_timeout)
    serving.admission.check_time(exchange.key_name, deadline_s)
    async with until_disconnect(receive):
        await compile_grammar(serving, engine, request)
        processed = await serving.in_text_thread(
            _process, serving, engine, served, exchange, request, id, ends_at_context
        )
    log_prompts(serving, exchange, [processed])
    return ChatWork(
        request=request, processed=processed, new_reader=PlainReader, deadline_s=deadline_s
    )


def chat_prompt(request: ChatRequest, served: ServedModel) -> tuple[str, list[int]]:
    """What the model reads, as text and tokens.  In a thread for text; raises `RequestError`."""
    variables = dict(request.chat_template_kwargs)
    if request.reasoning_effort is not None:
        variables |= _reasoning_variables(request.reasoning_effort, served)
    return served.encode_messages(
        request.messages, add_generation_prompt=request.add_generation_prompt, **variables
    )


def _process(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: ChatRequest,
    id: str,
    ends_at_context: bool,
) -> ProcessedInput:
    """In a thread for text."""
    text, token_ids = chat_prompt(request, served)
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
    check_fits(
        request,
        [processed],
        served,
        asked_tokens=None if ends_at_context else request.asked_tokens,
    )
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
