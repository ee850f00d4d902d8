"""From a text completion request, in whatever dialect it came, to the engine's work for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.server.disconnect import until_disconnect
from chairlift.server.errors import bad_request
from chairlift.server.exchange import Exchange
from chairlift.server.generation import AnswerFormat, Job, deadline_of
from chairlift.server.json_body import JsonObject
from chairlift.server.protocol.completion import CompletionRequest
from chairlift.server.protocol.field_policy import REFUSED_IN_COMPLETIONS
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
class CompletionWork:
    """A text completion request that has been understood and tokenized."""

    request: CompletionRequest
    processed: Sequence[ProcessedInput]
    """One per prompt."""
    deadline_s: float | None

    def job(self, format: AnswerFormat) -> Job:
        """To be answered in this format."""
        return Job(
            requests=self.processed,
            format=format,
            is_streaming=self.request.stream,
            priority=self.request.priority,
            deadline_s=self.deadline_s,
        )


def completion_request(body: JsonObject, served: ServedModel) -> CompletionRequest:
    """Raises `ApiError`, naming the field."""
    _fill_prompt(body, served)
    request = parse(CompletionRequest, body)
    request.check()
    return request


async def completion_work(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: CompletionRequest,
    receive: Receive,
    *,
    id: str,
    ends_at_context: bool = False,
) -> CompletionWork:
    """Check and tokenize, off the event loop.  `id`: the engine's name for it.

    `ends_at_context`: where the context has no room for as many tokens as were asked for, the
    answer is shorter, rather than the request refused.
    Books the fields that change nothing.  Raises `ApiError`, `RequestError` and `ClientClosed`.
    """
    served.check_name(request.model)
    book_fields(serving, exchange, request, REFUSED_IN_COMPLETIONS, ())
    serving.metrics.request_received(exchange)
    deadline_s = deadline_of(exchange, request.timeout, serving.config.request_timeout)
    serving.admission.check_time(exchange.key_name, deadline_s)
    async with until_disconnect(receive):
        await compile_grammar(serving, engine, request)
        processed = await serving.in_text_thread(
            _process, serving, engine, served, exchange, request, id, ends_at_context
        )
    log_prompts(serving, exchange, processed)
    return CompletionWork(request=request, processed=processed, deadline_s=deadline_s)


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
    ends_at_context: bool,
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
    asked_tokens = None if ends_at_context else request.max_tokens
    check_fits(request, processed, served, asked_tokens=asked_tokens)
    return processed


def _prompt(prompt: str | list[int], request: CompletionRequest, served: ServedModel) -> Prompt:
    if isinstance(prompt, list) or request.add_special_tokens:
        return prompt
    served.check_length(prompt)
    ids = served.tokenizer.encode(prompt, add_special_tokens=False)
    return {"prompt": prompt, "prompt_token_ids": ids}
