"""POST /v1/embeddings."""

from __future__ import annotations

import sys
from array import array
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from chairlift.engine.async_engine import AsyncEngine
from chairlift.outputs import RequestOutput
from chairlift.server.embedding import (
    EmbeddingJob,
    EmbeddingOptions,
    Truncation,
    embed,
    prepare,
)
from chairlift.server.exchange import Exchange, exchange_of, new_id
from chairlift.server.json_body import BodyLimits, JsonObject
from chairlift.server.part_answer import in_parts, send_parts
from chairlift.server.protocol.embedding import EmbeddingRequest, EmbeddingUsage
from chairlift.server.protocol.field_policy import REFUSED_IN_EMBEDDINGS
from chairlift.server.protocol.strict_model import parse
from chairlift.server.protocol.usage import timings_of
from chairlift.server.request_reading import book_fields, log_prompts, read_body
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving


class Embeddings:
    """The endpoint."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "embeddings"
        engine, served = serving.engine()
        serving.admission.check_open(exchange.key_name)
        with serving.lifecycle.in_flight():
            job, encode = await self._read(engine, served, exchange, receive)
            outputs = await embed(serving, engine, exchange, job, receive)
            usage = EmbeddingUsage(
                prompt_tokens=job.num_tokens,
                total_tokens=job.num_tokens,
                timings=timings_of(outputs) if serving.config.usage_timings else None,
            )
            written = _answer(outputs, encode, served.names[0], usage)
            parts = await serving.in_text_thread(in_parts, written)
            await send_parts(serving, parts, receive, send)

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> tuple[EmbeddingJob, Callable[[array[float]], bytes]]:
        """What is to be done, and how vectors are written; the texts themselves are let go."""
        serving = self._serving
        limits = BodyLimits.of_many_texts(serving.config.max_body_size, served.max_prompt_chars)
        understand = partial(_understand, served)
        async with read_body(serving, exchange, receive, limits, understand) as request:
            served.check_name(request.model)
            book_fields(serving, exchange, request, REFUSED_IN_EMBEDDINGS, _without_effect(request))
            serving.metrics.request_received(exchange)
            options = _options(request, served)
            job = await prepare(
                serving, engine, exchange, request.input, options, receive, id=new_id("embd")
            )
            encode = _base64 if request.encoding_format == "base64" else _floats
        log_prompts(serving, exchange, job.requests)
        return job, encode


def _understand(served: ServedModel, body: JsonObject) -> EmbeddingRequest:
    request = parse(EmbeddingRequest, body)
    request.check(served.hidden_size)
    return request


def _options(request: EmbeddingRequest, served: ServedModel) -> EmbeddingOptions:
    truncation = None
    if request.truncate_prompt_tokens is not None:
        asked = request.truncate_prompt_tokens
        max_tokens = served.max_model_len if asked == -1 else min(asked, served.max_model_len)
        truncation = Truncation(max_tokens=max_tokens, side=request.truncation_side)
    return EmbeddingOptions(
        pooling_params=request.pooling_params(),
        add_special_tokens=request.add_special_tokens,
        truncation=truncation,
        priority=request.priority,
        cache_salt=request.cache_salt,
        timeout_s=request.timeout,
    )


def _without_effect(request: EmbeddingRequest) -> list[str]:
    is_given = "truncation_side" in request.model_fields_set
    return ["truncation_side"] if is_given and request.truncate_prompt_tokens is None else []


def _answer(
    outputs: Sequence[RequestOutput],
    encode: Callable[[array[float]], bytes],
    model: str,
    usage: EmbeddingUsage,
) -> Iterator[bytes]:
    """The JSON of an `EmbeddingList`, vector by vector: others want their turn."""
    yield b'{"object":"list","data":['
    for index, output in enumerate(outputs):
        assert output.embedding is not None, "it has ended well"
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (
            b"," if index else b"",
            index,
            encode(output.embedding),
        )
    told = usage.model_dump_json().encode("ascii")
    yield b'],"model":%b,"usage":%b}' % (to_json(model), told)


def _floats(vector: array[float]) -> bytes:
    return to_json(vector.tolist())


def _base64(vector: array[float]) -> bytes:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b'"%b"' % b2a_base64(vector, newline=False)
