"""From texts to vectors, for every endpoint that answers with vectors: queue, engine, errors.

`prepare` makes tokens, `embed` runs them.  Inputs go to the engine in groups of about a step, three
at a time: one is being computed, one is next, and one takes the place of what has ended.  So a
request of thousands of inputs keeps the engine busy, and nobody waits long behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.errors import RequestError
from chairlift.outputs import RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.server.admission import admitted
from chairlift.server.arrival import Arrival
from chairlift.server.disconnect import until_disconnect
from chairlift.server.exchange import Exchange
from chairlift.server.generation import (
    api_errors,
    check_deadline,
    check_output,
    deadline_of,
    measured,
)
from chairlift.server.request_reading import cache_salt_of, priority_of
from chairlift.server.serving import Serving

Values = TypeVar("Values", str, list[int])

GROUP_PROMPTS = 96
"""Inputs of a group at most."""
NUM_GROUPS = 3
"""At a time."""
POLITE_SHARE = 8
"""While others are served, a group is this part of a step: their tokens come in every step, and the
longer it is the later."""
_TEXTS_AT_ONCE = 64
"""Tokenized in one turn: others come between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Inputs that are longer lose tokens on one side, never those that the model wants there."""

    max_tokens: int
    side: Literal["left", "right"] = "right"

    def cut(self, values: Values, length: int) -> Values:
        """What stays of a text or of tokens."""
        return values[:length] if self.side == "right" else values[-length:]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """How inputs become vectors, and in whose name."""

    pooling_params: PoolingParams
    add_special_tokens: bool = True
    truncation: Truncation | None = None
    priority: int = 0
    cache_salt: str | None = None
    timeout_s: float | None = None
    field: str = "input"
    """What errors call the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob:
    """Inputs that make one answer."""

    requests: Sequence[ProcessedInput]
    priority: int
    deadline_s: float | None

    @property
    def num_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)


async def prepare(
    serving: Serving,
    engine: AsyncEngine,
    exchange: Exchange,
    inputs: Sequence[str | list[int]],
    options: EmbeddingOptions,
    receive: Receive,
    *,
    id: str,
) -> EmbeddingJob:
    """Check and tokenize.  The request's body must have been read.

    Raises `ApiError`, naming the input at fault, and `ClientClosed`.
    """
    deadline_s = deadline_of(exchange, options.timeout_s, serving.config.request_timeout)
    serving.admission.check_time(exchange.key_name, deadline_s, wants_vectors=True)

    def tokenize(start: int) -> list[ProcessedInput]:
        part = range(start, min(start + _TEXTS_AT_ONCE, len(inputs)))
        return [_process(serving, engine, exchange, inputs, i, options, id) for i in part]

    requests: list[ProcessedInput] = []
    async with until_disconnect(receive):
        for start in range(0, len(inputs), _TEXTS_AT_ONCE):
            requests += await serving.in_text_thread(tokenize, start)
    return EmbeddingJob(requests=requests, priority=options.priority, deadline_s=deadline_s)


def _process(
    serving: Serving,
    engine: AsyncEngine,
    exchange: Exchange,
    inputs: Sequence[str | list[int]],
    index: int,
    options: EmbeddingOptions,
    id: str,
) -> ProcessedInput:
    """In a thread for text.  Raises `RequestError`."""
    try:
        return engine.engine.process_embedding(
            _prompt(engine.engine, inputs[index], options),
            options.pooling_params,
            request_id=f"{id}-{index}",
            priority=priority_of(serving, exchange, options.priority),
            tenant=exchange.key_name if serving.shares_fairly else "",
            cache_salt=cache_salt_of(serving, exchange, options.cache_salt),
            arrival_time=exchange.started_s,
        )
    except RequestError as error:
        name = options.field if len(inputs) == 1 else f"{options.field}[{index}]"
        raise type(error)(f"{name}: {error}", field=name) from None


def _prompt(engine: Engine, value: str | list[int], options: EmbeddingOptions) -> Prompt:
    """An input with the tokens that were asked for, cut where that was."""
    cut = options.truncation
    if isinstance(value, list):
        return value if cut is None else cut.cut(value, cut.max_tokens)
    if cut is None and options.add_special_tokens:
        return value
    text, processor, tokenizer = value, engine.input_processor, engine.model.tokenizer
    if cut is None:
        processor.check_length(text)
    elif len(text) > processor.max_prompt_chars:  # no token of the rest could stay
        text = cut.cut(text, processor.max_prompt_chars)
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.with_special_tokens(ids) if options.add_special_tokens else ids
    if cut is not None and len(whole) > cut.max_tokens:
        num_special = tokenizer.add_bos + tokenizer.add_eos if options.add_special_tokens else 0
        if cut.max_tokens <= num_special:
            raise RequestError(
                f"cut to {cut.max_tokens} tokens, nothing is left of the text", field=options.field
            )
        ids = cut.cut(ids, cut.max_tokens - num_special)
        whole = tokenizer.with_special_tokens(ids) if options.add_special_tokens else ids
    return {"prompt": value, "prompt_token_ids": whole}


async def embed(
    serving: Serving, engine: AsyncEngine, exchange: Exchange, job: EmbeddingJob, receive: Receive
) -> list[RequestOutput]:
    """Run a job while its client is there: outputs with an `embedding`, in the order of inputs.

    Raises `ApiError` and `ClientClosed`.
    """
    check_deadline(job.deadline_s)
    run = _Run(serving, engine, exchange, job)
    exchange.outputs = run.finished.values()
    async with until_disconnect(receive):
        with api_errors(serving):
            await run.all()
    return [run.finished[request.request_id] for request in job.requests]


class _Run:
    """A job on its way through the engine."""

    def __init__(
        self, serving: Serving, engine: AsyncEngine, exchange: Exchange, job: EmbeddingJob
    ) -> None:
        self.finished: dict[str, RequestOutput] = {}
        self._serving = serving
        self._engine = engine
        self._exchange = exchange
        self._job = job
        self._num_step_tokens = engine.engine.model.resolved.scheduler.max_num_batched_tokens
        self._left = deque(job.requests)
        self._is_let_in = asyncio.Event()

    async def all(self) -> None:
        """The first group asks to be let in; the others take the places that it leaves."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._some())
                for _ in range(NUM_GROUPS - 1):
                    tasks.create_task(self._some_after_the_first())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _some(self) -> None:
        while self._left:
            await self._one(self._next_group())

    async def _some_after_the_first(self) -> None:
        await self._is_let_in.wait()
        await self._some()

    def _next_group(self) -> list[ProcessedInput]:
        """About a step's tokens; few where others are served, who share its steps."""
        is_alone = self._serving.lifecycle.num_in_flight <= 1
        max_tokens = self._num_step_tokens // (1 if is_alone else POLITE_SHARE)
        group: list[ProcessedInput] = []
        num_tokens = 0
        while self._left and len(group) < GROUP_PROMPTS and (num_tokens < max_tokens or not group):
            group.append(self._left.popleft())
            num_tokens += len(group[-1].prompt_token_ids)
        return group

    async def _one(self, group: Sequence[ProcessedInput]) -> None:
        arrival = Arrival(
            key_name=self._exchange.key_name,
            priority=self._job.priority,
            requests=tuple(group),
            deadline_s=self._job.deadline_s,
            is_continued=self._is_let_in.is_set(),
        )
        with (
            admitted(self._serving.admission, arrival),
            measured(self._serving, self._exchange, group),
            self._engine.submit(
                group, is_streaming=False, deadline_s=self._job.deadline_s
            ) as reader,
        ):
            self._is_let_in.set()
            while not reader.is_finished:
                for output in await reader.get():
                    check_output(output, self._exchange)
                    self.finished[output.request_id] = output
