"""From a chat request, in whatever dialect it came, to the engine's work for it.

Other dialects say the same as a body of /v1/chat/completions; from there on there is one path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.errors import RequestError
from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.answer_constraint import answer_constraint
from chairlift.server.answer_parts import ReaderFactory
from chairlift.server.disconnect import until_disconnect
from chairlift.server.errors import bad_request
from chairlift.server.exchange import Exchange
from chairlift.server.generation import AnswerFormat, Job, api_errors, deadline_of
from chairlift.server.json_body import JsonObject
from chairlift.server.protocol.chat import ChatRequest, FinishReason
from chairlift.server.protocol.field_policy import REFUSED_IN_CHAT
from chairlift.server.protocol.strict_model import parse
from chairlift.server.protocol.tools import ToolUse
from chairlift.server.reasoning_count import ReasoningCount
from chairlift.server.request_reading import (
    book_fields,
    check_fits,
    compile_constraint,
    log_prompts,
    process,
)
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.structured_outputs import StructuredOutputsParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWork:
    """A chat request that has been understood and tokenized."""

    request: ChatRequest
    processed: ProcessedInput
    new_reader: ReaderFactory
    """Reads the parts of one answer."""
    deadline_s: float | None

    def finish_reason(self, completion: CompletionOutput, *, has_calls: bool) -> FinishReason:
        """Of a finished answer.  A tool that was named is called without that being news."""
        use = self.request.tool_use
        if completion.finish_reason == "length":
            return "length"
        return "tool_calls" if has_calls and use is not None and not use.is_named else "stop"

    def num_reasoning_tokens(self, served: ServedModel, outputs: Sequence[RequestOutput]) -> int:
        """Of all answers together, which are whole."""
        num_tokens = 0
        for completion in (completion for output in outputs for completion in output.outputs):
            reader = self.new_reader()
            reader.read(completion.text, is_finished=True)
            if reader.num_reasoning_chars:
                counter = ReasoningCount(served.tokenizer, self.processed)
                num_tokens += counter.count(completion.token_ids, reader.num_reasoning_chars)
        return num_tokens

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
        prompt = await serving.in_text_thread(_prompt, serving, served, request)
        if prompt.constraint is not None:
            with api_errors(serving), _as_sent(request):
                await compile_constraint(serving, engine, prompt.constraint)
        processed = await serving.in_text_thread(
            _process, serving, engine, served, exchange, request, prompt, id, ends_at_context
        )
    log_prompts(serving, exchange, [processed])
    return ChatWork(
        request=request,
        processed=processed,
        new_reader=served.reading.reader_factory(request.tool_use, prompt.text),
        deadline_s=deadline_s,
    )


def chat_prompt(request: ChatRequest, served: ServedModel) -> tuple[str, list[int]]:
    """What the model reads, as text and tokens.  In a thread for text; raises `RequestError`."""
    variables = dict(request.chat_template_kwargs)
    if request.reasoning_effort is not None:
        variables |= _reasoning_variables(request.reasoning_effort, served)
    return served.encode_messages(
        request.messages,
        use=request.tool_use,
        add_generation_prompt=request.add_generation_prompt,
        **variables,
    )


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A conversation as the model reads it, and what its answer may consist of."""

    text: str
    token_ids: list[int]
    constraint: StructuredOutputsParams | None


def _prompt(serving: Serving, served: ServedModel, request: ChatRequest) -> _Prompt:
    """In a thread for text."""
    use = request.tool_use
    _check_tools(serving, served, use)
    text, token_ids = chat_prompt(request, served)
    with _as_sent(request):
        constraint = answer_constraint(
            request.structured(), use, served.reading, text, served.tokenizer.special_id
        )
    return _Prompt(text, token_ids, constraint)


def _process(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: ChatRequest,
    prompt: _Prompt,
    id: str,
    ends_at_context: bool,
) -> ProcessedInput:
    """In a thread for text."""
    params = request.sampling_params(
        served.defaults,
        max_tokens=request.asked_tokens,
        logprobs=request.num_logprobs,
        kept_special_token_ids=served.special_ids_of(served.reading.markers(request.tool_use)),
        structured_outputs=prompt.constraint,
    )
    parts: Prompt = {"prompt": prompt.text, "prompt_token_ids": prompt.token_ids}
    with _as_sent(request):
        processed = process(serving, engine, exchange, parts, params, id=id, request=request)
    check_fits(
        request,
        [processed],
        served,
        asked_tokens=None if ends_at_context else request.asked_tokens,
    )
    return processed


@contextmanager
def _as_sent(request: ChatRequest) -> Iterator[None]:
    """Faults of a grammar are those of the tools, where calls must fit it."""
    try:
        yield
    except RequestError as error:
        use = request.tool_use
        is_grammar = (error.field or "").startswith("structured_outputs")
        if is_grammar and use is not None and request.structured() is None:
            raise RequestError(f"tools: {error}", field="tools") from None
        raise request.as_sent(error) from None


def _check_tools(serving: Serving, served: ServedModel, use: ToolUse | None) -> None:
    """Raises `ApiError` if calls could not be told from text."""
    if use is None or use.must_call:
        return
    if not serving.config.enable_auto_tool_choice:
        raise bad_request(
            "this server was started with --no-enable-auto-tool-choice: set tool_choice to"
            " required or to a tool",
            param="tool_choice",
        )
    if served.reading.tool_parser is None:
        raise bad_request(
            "how this model writes calls of tools is not known here: set tool_choice to required"
            " or to a tool, or start the server with another --tool-parser",
            param="tools",
        )


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
    if request.parallel_tool_calls is not None and request.tool_use is None:
        names.append("parallel_tool_calls")
    for tool in request.tools or ():
        names += [f"tools.{name}" for name in tool.unknown_fields()]
        names += [f"tools.function.{name}" for name in tool.function.unknown_fields()]
    return names
