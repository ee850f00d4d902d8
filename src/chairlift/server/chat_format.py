"""How outputs become a chat completion, whole or as a stream of deltas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.chat_job import ChatWork
from chairlift.server.logprobs import chat_logprobs
from chairlift.server.protocol.chat import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChoiceLogprobs,
)
from chairlift.server.protocol.usage import Usage, usage_of
from chairlift.server.served_model import ServedModel
from chairlift.server.sse import json_string
from chairlift.server.stream_frame import StreamFrame


@dataclass(slots=True)
class _Sent:
    """How much of one choice the client has."""

    num_chars: int = 0
    num_tokens: int = 0
    has_role: bool = False
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
        self._sent = [_Sent() for _ in range(request.n)]
        self._frame = StreamFrame(
            id=id,
            object="chat.completion.chunk",
            created=created,
            model=served.names[0],
            fingerprint=served.fingerprint,
            has_usage=request.includes_usage,
        )

    def chunks(self, output: RequestOutput) -> bytes:
        usage = self._usage([output]) if self._has_running_usage else None
        data = b""
        for completion, sent in zip(output.outputs, self._sent, strict=True):
            num_tokens = len(completion.token_ids)
            if not sent.is_finished and num_tokens > sent.num_tokens:
                data += self._delta(completion, sent, usage)
                sent.num_tokens = num_tokens
            if completion.finish_reason is not None and not sent.is_finished:
                sent.is_finished = True
                data += self._frame.chunk(_last_choice(completion), usage)
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

    def _delta(self, completion: CompletionOutput, sent: _Sent, usage: Usage | None) -> bytes:
        """The chunk with a choice's new text; nothing while all of it is held back."""
        text = completion.text[sent.num_chars :]
        if not text and sent.has_role and self._num_logprobs is None:
            return b""
        role = "" if sent.has_role else '"role":"assistant",'
        sent.has_role = True
        sent.num_chars += len(text)
        logprobs = self._logprobs(completion, sent.num_tokens)
        shown = "null" if logprobs is None else logprobs.model_dump_json()
        choice = (
            f'{{"index":{completion.index},"delta":{{{role}"content":{json_string(text)}}}'
            f',"logprobs":{shown},"finish_reason":null}}'
        )
        return self._frame.chunk(choice.encode("utf-8"), usage)

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=completion.index,
            message=AnswerMessage(content=completion.text),
            logprobs=self._logprobs(completion, 0),
            finish_reason=cast("str", completion.finish_reason),  # type: ignore[arg-type]
            stop_reason=completion.stop_reason,
        )

    def _logprobs(self, completion: CompletionOutput, start: int) -> ChoiceLogprobs | None:
        if self._num_logprobs is None or completion.logprobs is None:
            return None
        positions = completion.logprobs[start:]
        return chat_logprobs(self._served.tokenizer, positions, self._num_logprobs)

    def _usage(self, outputs: Sequence[RequestOutput]) -> Usage:
        return usage_of(outputs, has_timings=self._has_timings)


def _last_choice(completion: CompletionOutput) -> bytes:
    """How the choice ended, in a chunk of its own."""
    text = (
        f'{{"index":{completion.index},"delta":{{}},"logprobs":null,"finish_reason":'
        f'"{completion.finish_reason}","stop_reason":{json.dumps(completion.stop_reason)}}}'
    )
    return text.encode("utf-8")
