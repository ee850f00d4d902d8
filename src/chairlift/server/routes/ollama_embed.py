"""POST /api/embed, and the older /api/embeddings, for Ollama's clients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from chairlift.outputs import RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.server.embedding import EmbeddingOptions, Truncation, embed, prepare
from chairlift.server.errors import unsupported
from chairlift.server.exchange import Exchange, exchange_of, new_id
from chairlift.server.json_body import BodyLimits, JsonObject
from chairlift.server.ollama.completion_body import check_context
from chairlift.server.ollama.model_names import name_here
from chairlift.server.part_answer import in_parts, send_parts
from chairlift.server.plain_answer import send_model
from chairlift.server.protocol.field_policy import ignored_fields
from chairlift.server.protocol.ollama import (
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedFields,
    OllamaEmbedRequest,
)
from chairlift.server.protocol.strict_model import parse
from chairlift.server.request_reading import log_prompts, read_body
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving

_Asked = TypeVar("_Asked", bound=OllamaEmbedFields)


class _Embedding:
    """What both endpoints do."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def vectors(
        self,
        exchange: Exchange,
        request: OllamaEmbedFields,
        inputs: Sequence[str],
        options: EmbeddingOptions,
        receive: Receive,
    ) -> list[RequestOutput]:
        """Outputs with vectors, in the order of inputs.  Raises `ApiError` and `ClientClosed`."""
        serving = self._serving
        engine, served = serving.engine()
        served.check_name(name_here(request.model, served))
        serving.metrics.request_received(exchange)
        exchange.ignored = _ignored(request, is_strict=serving.config.strict_fields)
        if exchange.ignored:
            serving.metrics.fields_ignored(exchange.ignored)
        if not inputs:
            return []
        id = new_id("embd")
        job = await prepare(serving, engine, exchange, list(inputs), options, receive, id=id)
        log_prompts(serving, exchange, job.requests)
        return await embed(serving, engine, exchange, job, receive)


class OllamaEmbed(_Embedding):
    """Texts as vectors of length 1."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "ollama_embed"
        _, served = serving.engine()
        serving.admission.check_open(exchange.key_name)
        understand = partial(_understand_embed, served=served)
        with serving.lifecycle.in_flight():
            async with read_body(
                serving, exchange, receive, _limits(serving, served), understand
            ) as request:
                inputs = [request.input] if isinstance(request.input, str) else request.input
                cut = Truncation(max_tokens=served.max_model_len) if request.truncate else None
                options = EmbeddingOptions(pooling_params=PoolingParams(), truncation=cut)
                outputs = await self.vectors(exchange, request, inputs, options, receive)
                model = request.model
            total_ns = round(1e9 * (time.monotonic() - exchange.started_s))
            written = _answer(model, outputs, total_ns)
            parts = await serving.in_text_thread(in_parts, written)
            await send_parts(serving, parts, receive, send)


class OllamaEmbeddings(_Embedding):
    """One text as a vector, as the model has it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "ollama_embeddings"
        _, served = serving.engine()
        serving.admission.check_open(exchange.key_name)
        understand = partial(_understand, OllamaEmbeddingsRequest, served=served)
        with serving.lifecycle.in_flight():
            async with read_body(
                serving, exchange, receive, _limits(serving, served), understand
            ) as request:
                options = EmbeddingOptions(
                    pooling_params=PoolingParams(normalize=False), field="prompt"
                )
                inputs = [request.prompt] if request.prompt else []
                outputs = await self.vectors(exchange, request, inputs, options, receive)
            vector = _vector(outputs[0]) if outputs else []
            await send_model(send, OllamaEmbeddingsAnswer(embedding=vector))


def _understand(kind: type[_Asked], body: JsonObject, *, served: ServedModel) -> _Asked:
    request = parse(kind, body)
    if request.options is not None:
        check_context(request.options, served)
    return request


def _understand_embed(body: JsonObject, *, served: ServedModel) -> OllamaEmbedRequest:
    request = _understand(OllamaEmbedRequest, body, served=served)
    if request.dimensions not in (None, 0, served.hidden_size):
        raise unsupported(
            "dimensions",
            f"dimensions: this model's vectors have {served.hidden_size} and cannot be shortened",
        )
    if request.input == "":
        request.input = []
    return request


def _ignored(request: OllamaEmbedFields, *, is_strict: bool) -> list[str]:
    others = ["keep_alive"] if request.keep_alive is not None else []
    if request.options is not None:
        given = [*request.options.model_fields_set, *request.options.unknown_fields()]
        others += [f"options.{name}" for name in dict.fromkeys(given)]
    return ignored_fields(request, {}, others, is_strict=is_strict)


def _answer(model: str, outputs: Sequence[RequestOutput], total_ns: int) -> Iterator[bytes]:
    """The JSON of an `OllamaEmbedAnswer`, vector by vector: others want their turn."""
    yield b'{"model":%b,"embeddings":[' % to_json(model)
    for index, output in enumerate(outputs):
        yield (b"," if index else b"") + to_json(_vector(output))
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    yield (
        b'],"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (total_ns, num_tokens)
    )


def _vector(output: RequestOutput) -> list[float]:
    assert output.embedding is not None, "it has ended well"
    return output.embedding.tolist()


def _limits(serving: Serving, served: ServedModel) -> BodyLimits:
    return BodyLimits.of_many_texts(serving.config.max_body_size, served.max_prompt_chars)
