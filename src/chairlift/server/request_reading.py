"""What reading a chat and a text completion request has in common."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.errors import RequestError
from chairlift.sampling_params import SamplingParams
from chairlift.server.errors import bad_request, of_request_error
from chairlift.server.exchange import Exchange
from chairlift.server.json_body import BodyLimits, JsonObject, parse_json_object, read_bytes
from chairlift.server.protocol.embedding import EmbeddingRequest
from chairlift.server.protocol.field_policy import IsNeutral, ignored_fields
from chairlift.server.protocol.sampling_fields import SamplingFields
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.structured_outputs import StructuredOutputsParams

logger = logging.getLogger("chairlift")

LARGE_BODY_BYTES = 64 * 1024
"""From here on a body is parsed and checked off the event loop."""

T = TypeVar("T")


@asynccontextmanager
async def read_body(
    serving: Serving,
    exchange: Exchange,
    receive: Receive,
    limits: BodyLimits,
    understand: Callable[[JsonObject], T],
) -> AsyncIterator[T]:
    """What `understand` makes of the request's JSON object, to be let go with the block.

    Raises `ApiError` and `ClientClosed`.
    """
    with serving.bodies.share() as take:
        yield await _understood(
            serving,
            await read_bytes(
                exchange.headers,
                receive,
                limits=limits,
                take=take,
                more_types=exchange.wire.more_body_types,
            ),
            exchange,
            understand,
        )


async def _understood(
    serving: Serving, data: bytearray, exchange: Exchange, understand: Callable[[JsonObject], T]
) -> T:
    exchange.is_body_pending = False
    if len(data) < LARGE_BODY_BYTES:
        return understand(parse_json_object(data))
    return await serving.in_text_thread(lambda: understand(parse_json_object(data)))


def book_fields(
    serving: Serving,
    exchange: Exchange,
    request: SamplingFields | EmbeddingRequest,
    refused: Mapping[str, IsNeutral],
    without_effect: Sequence[str],
) -> None:
    """Name what changes nothing.  Raises `ApiError` for what cannot be honoured."""
    more = list(without_effect)
    if "priority" in request.model_fields_set:
        if serving.engine()[1].has_priorities:
            _check_priority(serving, exchange, request.priority)
        else:
            more.append("priority")
    if isinstance(request, SamplingFields) and request.stream_options is not None:
        options = request.stream_options
        more += [f"stream_options.{name}" for name in options.unknown_fields()]
        if options.include_obfuscation:
            more.append("stream_options.include_obfuscation")
    exchange.ignored = ignored_fields(
        request, refused, more, is_strict=serving.config.strict_fields
    )
    if exchange.ignored:
        serving.metrics.fields_ignored(exchange.ignored)


def book_unknown(serving: Serving, exchange: Exchange, request: StrictModel) -> None:
    """The same for a request that is not for tokens."""
    exchange.ignored = ignored_fields(request, {}, is_strict=serving.config.strict_fields)
    if exchange.ignored:
        serving.metrics.fields_ignored(exchange.ignored)


def process(
    serving: Serving,
    engine: AsyncEngine,
    exchange: Exchange,
    prompt: Prompt,
    params: SamplingParams,
    *,
    id: str,
    request: SamplingFields,
) -> ProcessedInput:
    """Check and tokenize one prompt.  Raises `RequestError`."""
    try:
        return engine.engine.process_input(
            prompt,
            params,
            request_id=id,
            priority=priority_of(serving, exchange, request.priority),
            tenant=exchange.key_name if serving.shares_fairly else "",
            cache_salt=cache_salt_of(serving, exchange, request.cache_salt),
            arrival_time=exchange.started_s,
        )
    except RequestError as error:
        raise request.as_sent(error) from None


async def compile_grammar(serving: Serving, engine: AsyncEngine, request: SamplingFields) -> None:
    """Have the request's grammar at hand, where no text waits for it.  Raises `ApiError`."""
    asked = request.structured()
    if asked is None:
        return
    try:
        await compile_constraint(serving, engine, asked)
    except RequestError as error:
        raise of_request_error(request.as_sent(error)) from None


async def compile_constraint(
    serving: Serving, engine: AsyncEngine, asked: StructuredOutputsParams
) -> None:
    """The same for a grammar at large.  Raises `RequestError`."""
    inputs = engine.engine.input_processor
    if not inputs.has_compiled(asked):
        await serving.in_grammar_thread(inputs.compile_grammar, asked)


def log_prompts(serving: Serving, exchange: Exchange, processed: Sequence[ProcessedInput]) -> None:
    """If somebody has asked for it."""
    if serving.config.log_prompts:
        for item in processed:
            shown = item.prompt if item.prompt is not None else list(item.prompt_token_ids)
            logger.info("prompt of %s: %.10000s", exchange.request_id, shown)


def check_fits(
    request: SamplingFields,
    processed: Sequence[ProcessedInput],
    served: ServedModel,
    *,
    asked_tokens: int | None,
) -> None:
    """Raises `ApiError` if what was asked for is longer than the context, or costs too much."""
    for item in processed:
        num_prompt = len(item.prompt_token_ids)
        if num_prompt + (asked_tokens or 0) > served.max_model_len:
            raise bad_request(
                f"the prompt of {num_prompt} tokens and {asked_tokens} tokens to generate do not"
                f" fit the model's context of {served.max_model_len}",
                param="max_tokens",
                code="context_length_exceeded",
            )
    params = processed[0].params
    num_tokens = sum(
        child.max_tokens * (params.logprobs is not None)
        + len(item.prompt_token_ids) * (params.prompt_logprobs is not None)
        for item in processed
        for child in item.children
    )
    request.check_logprob_values(num_tokens, params.logprobs)


def _check_priority(serving: Serving, exchange: Exchange, priority: int) -> None:
    """With several keys nobody gets past the others by asking for it."""
    best = serving.keys.best_priority(exchange.key_name)
    if best is not None and priority < best:
        raise bad_request(
            f"this API key may ask for priority {best} at best, got {priority}",
            param="priority",
            code="priority_not_allowed",
        )


def priority_of(serving: Serving, exchange: Exchange, asked: int) -> int:
    """What was asked for, or the key's own."""
    best = serving.keys.best_priority(exchange.key_name)
    return asked if best is None else max(best, asked)


def cache_salt_of(serving: Serving, exchange: Exchange, asked: str | None) -> str:
    """Prompts of different keys never share cached blocks: the time to answer would tell."""
    key_name = exchange.key_name if len(serving.keys) > 1 else ""
    return f"{key_name}\0{asked}" if asked or key_name else ""
