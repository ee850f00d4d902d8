"""POST /v1/completions."""

from __future__ import annotations

import time
from functools import partial

from starlette.types import Receive, Scope, Send

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.server.disconnect import until_disconnect
from chairlift.server.errors import bad_request
from chairlift.server.exchange import Exchange, exchange_of, new_id
from chairlift.server.generation import Job, answer, deadline_of
from chairlift.server.json_body import BodyLimits, JsonObject
from chairlift.server.protocol.completion import CompletionRequest
from chairlift.server.protocol.field_policy import REFUSED_IN_COMPLETIONS
from chairlift.server.protocol.strict_model import parse
from chairlift.server.request_reading import (
    book_fields,
    check_fits,
    compile_grammar,
    log_prompts,
    process,
    read_body,
)
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.server.text_format import TextFormat


class Completions:
    """The endpoint."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "completions"
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
        limits = BodyLimits.of_many_texts(serving.config.max_body_size, served.max_prompt_chars)
        understand = partial(_understand, served)
        async with read_body(serving, exchange, receive, limits, understand) as request:
            served.check_name(request.model)
            book_fields(serving, exchange, request, REFUSED_IN_COMPLETIONS, ())
            serving.metrics.request_received(exchange)
            deadline_s = deadline_of(exchange, request.timeout, serving.config.request_timeout)
            serving.admission.check_time(exchange.key_name, deadline_s)
            id = new_id("cmpl")
            async with until_disconnect(receive):
                await compile_grammar(serving, engine, request)
                processed = await serving.in_text_thread(
                    _process, serving, engine, served, exchange, request, id
                )
        log_prompts(serving, exchange, processed)
        return Job(
            requests=processed,
            format=TextFormat(
                request,
                served,
                id=id,
                created=int(time.time()),
                request_ids=[item.request_id for item in processed],
                has_timings=serving.config.usage_timings,
            ),
            is_streaming=request.stream,
            priority=request.priority,
            deadline_s=deadline_s,
        )


def _understand(served: ServedModel, body: JsonObject) -> CompletionRequest:
    _fill_prompt(body, served)
    request = parse(CompletionRequest, body)
    request.check()
    return request


def _fill_prompt(body: JsonObject, served: ServedModel) -> None:
    """A prompt of null is the beginning of a text."""
    if "prompt" in body and body["prompt"] is None:
        bos_id = served.tokenizer.bos_id
        if bos_id is None:
            raise bad_request("prompt must be given: this model has no BOS token", param="prompt")
        body["prompt"] = [bos_id]


def _process(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: CompletionRequest,
    id: str,
) -> list[ProcessedInput]:
    """In a thread for text."""
    num_sampled = request.num_sampled
    needs_rating = num_sampled > request.n
    params = request.sampling_params(
        served.defaults,
        max_tokens=max(1, request.max_tokens),
        n=num_sampled,
        logprobs=0 if request.logprobs is None and needs_rating else request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
    )
    processed = [
        process(
            serving,
            engine,
            exchange,
            _prompt(prompt, request, served),
            params,
            id=f"{id}-{index}",
            request=request,
        )
        for index, prompt in enumerate(request.prompt)
    ]
    check_fits(request, processed, served, asked_tokens=request.max_tokens)
    return processed


def _prompt(prompt: str | list[int], request: CompletionRequest, served: ServedModel) -> Prompt:
    if isinstance(prompt, list) or request.add_special_tokens:
        return prompt
    served.check_length(prompt)
    ids = served.tokenizer.encode(prompt, add_special_tokens=False)
    return {"prompt": prompt, "prompt_token_ids": ids}
