"""How outputs become a chat completion, whole or as a stream of deltas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    PartReader,
    ReasoningPart,
    TextPart,
    WholeAnswer,
    read_whole,
)
from chairlift.server.chat_job import ChatWork
from chairlift.server.logprobs import chat_logprobs
from chairlift.server.protocol.chat import (
    AnsweredCall,
    AnsweredFunction,
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChoiceLogprobs,
)
from chairlift.server.protocol.usage import Usage, usage_of
from chairlift.server.reasoning_count import ReasoningCount
from chairlift.server.served_model import ServedModel
from chairlift.server.sse import json_string
from chairlift.server.stream_frame import StreamFrame


@dataclass(slots=True)
class _Choice:
    """One choice, and how much of it the client has."""

    reader: PartReader
    thoughts: ReasoningCount
    num_chars: int = 0
    num_tokens: int = 0
    has_role: bool = False
    has_calls: bool = False
    is_finished: bool = False


class ChatFormat:
    """One answer to a chat request."""

    def __init__(
        self,
        work: ChatWork,
        served: ServedModel,
        *,
        id: str,
        created: int,
        has_timings: bool,
    ) -> None:
        request = work.request
        self._id = id
        self._created = created
        self._served = served
        self._num_logprobs = request.num_logprobs
        self._has_timings = has_timings
        self._has_usage = request.includes_usage
        self._has_running_usage = request.has_continuous_usage
        self._work = work
        self._choices = [
            _Choice(work.new_reader(), ReasoningCount(served.tokenizer, work.processed))
            for _ in range(request.n)
        ]
        self._frame = StreamFrame(
            id=id,
            object="chat.completion.chunk",
            created=created,
            model=served.names[0],
            fingerprint=served.fingerprint,
            has_usage=request.includes_usage,
        )

    def chunks(self, output: RequestOutput) -> bytes:
        data = b""
        for completion, choice in zip(output.outputs, self._choices, strict=True):
            if choice.is_finished:
                continue
            parts = self._new_parts(completion, choice)
            usage = self._usage([output]) if self._has_running_usage else None
            data += self._deltas(completion, choice, parts, usage)
            if completion.finish_reason is not None:
                choice.is_finished = True
                reason = self._work.finish_reason(completion, has_calls=choice.has_calls)
                data += self._frame.chunk(_last_choice(completion, reason), usage)
        return data

    def last_chunks(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._frame.usage_chunk(self._usage(outputs)) if self._has_usage else b""

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        (output,) = outputs
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._served.names[0],
            system_fingerprint=self._served.fingerprint,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=self._usage(outputs),
        )

    def _new_parts(self, completion: CompletionOutput, choice: _Choice) -> list[AnswerPart]:
        text = completion.text[choice.num_chars :]
        choice.num_chars += len(text)
        return choice.reader.read(text, is_finished=completion.finish_reason is not None)

    def _deltas(
        self,
        completion: CompletionOutput,
        choice: _Choice,
        parts: list[AnswerPart],
        usage: Usage | None,
    ) -> bytes:
        """Chunks with what is new of a choice; none while all of it is held back."""
        logprobs = None
        if len(completion.token_ids) > choice.num_tokens:
            logprobs = self._logprobs(completion, choice.num_tokens)
            choice.num_tokens = len(completion.token_ids)
            if not parts and (logprobs is not None or not choice.has_role):
                parts = [TextPart("")]
        data = b""
        for part in parts:
            choice.has_calls = choice.has_calls or isinstance(part, CallPart)
            role = "" if choice.has_role else '"role":"assistant",'
            choice.has_role = True
            shown = "null" if logprobs is None else logprobs.model_dump_json()
            logprobs = None
            delta = (
                f'{{"index":{completion.index},"delta":{{{role}{_delta(part)}}}'
                f',"logprobs":{shown},"finish_reason":null}}'
            )
            data += self._frame.chunk(delta.encode("utf-8"), usage)
        return data

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        answer = read_whole(self._choices[completion.index].reader, completion.text)
        return ChatChoice(
            index=completion.index,
            message=_message(answer),
            logprobs=self._logprobs(completion, 0),
            finish_reason=self._work.finish_reason(completion, has_calls=bool(answer.calls)),
            stop_reason=completion.stop_reason,
        )

    def _logprobs(self, completion: CompletionOutput, start: int) -> ChoiceLogprobs | None:
        if self._num_logprobs is None or completion.logprobs is None:
            return None
        positions = completion.logprobs[start:]
        return chat_logprobs(self._served.tokenizer, positions, self._num_logprobs)

    def _usage(self, outputs: Sequence[RequestOutput]) -> Usage:
        """Of what has been read so far."""
        (output,) = outputs
        num_thoughts = sum(
            choice.thoughts.count(completion.token_ids, choice.reader.num_reasoning_chars)
            for completion, choice in zip(output.outputs, self._choices, strict=True)
        )
        return usage_of(outputs, has_timings=self._has_timings, num_reasoning_tokens=num_thoughts)


def _message(answer: WholeAnswer) -> AnswerMessage:
    thought = answer.reasoning or None
    calls = [
        AnsweredCall(
            id=call.id, function=AnsweredFunction(name=call.name, arguments=call.arguments)
        )
        for call in answer.calls
    ]
    return AnswerMessage(
        content=answer.text if answer.text or not calls else None,
        reasoning=thought,
        reasoning_content=thought,
        tool_calls=calls or None,
    )


def _delta(part: AnswerPart) -> str:
    """The members of a delta that carry one part."""
    match part:
        case TextPart():
            return f'"content":{json_string(part.text)}'
        case ReasoningPart():
            text = json_string(part.text)
            return f'"reasoning":{text},"reasoning_content":{text}'
        case CallPart():
            function = f'{{"name":{json_string(part.name)},"arguments":""}}'
            head = f'"id":{json_string(part.id)},"type":"function"'
            return f'"tool_calls":[{{"index":{part.index},{head},"function":{function}}}]'
        case ArgumentsPart():
            function = f'{{"arguments":{json_string(part.text)}}}'
            return f'"tool_calls":[{{"index":{part.index},"function":{function}}}]'


def _last_choice(completion: CompletionOutput, reason: str) -> bytes:
    """How the choice ended, in a chunk of its own."""
    text = (
        f'{{"index":{completion.index},"delta":{{}},"logprobs":null,"finish_reason":'
        f'"{reason}","stop_reason":{json.dumps(completion.stop_reason)}}}'
    )
    return text.encode("utf-8")
