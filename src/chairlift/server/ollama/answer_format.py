"""How outputs become answers to Ollama's clients, whole or as lines of JSON.

A line holds what one step has added; a call of a tool comes when it is complete, as an object.  The
last line has no text, and all figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import from_json

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.answer_parts import (
    ArgumentsPart,
    CallPart,
    PartReader,
    ReasoningPart,
    TextPart,
)
from chairlift.server.logprobs import chat_logprobs
from chairlift.server.protocol.ollama import (
    OllamaAnsweredCall,
    OllamaAnswerMessage,
    OllamaCalledFunction,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
)
from chairlift.server.served_model import ServedModel
from chairlift.server.sse import json_string


class _Said:
    """What an output has added."""

    def __init__(self) -> None:
        self.text = ""
        self.thinking = ""
        self.calls: list[OllamaAnsweredCall] = []


class OllamaFormat:
    """One answer to a request to chat or to generate."""

    def __init__(
        self,
        reader: PartReader,
        served: ServedModel,
        *,
        model: str,
        is_chat: bool,
        num_logprobs: int | None,
    ) -> None:
        """`model`: the name that was asked for.  `num_logprobs`: of each token, if any."""
        self._reader = reader
        self._served = served
        self._model = model
        self._is_chat = is_chat
        self._num_logprobs = num_logprobs
        self._num_chars = 0
        self._num_tokens = 0
        self._call: CallPart | None = None
        """The call whose arguments are arriving."""
        self._arguments = ""
        self._head = f'{{"model":{json_string(model)},"created_at":"'
        self._open = ',"message":{"role":"assistant","content":' if is_chat else ',"response":'

    def chunks(self, output: RequestOutput) -> bytes:
        (completion,) = output.outputs
        is_finished = completion.finish_reason is not None
        text = completion.text[self._num_chars :]
        self._num_chars += len(text)
        said = self._read(text, is_finished=is_finished)
        logprobs = self._logprobs(completion, self._num_tokens)
        self._num_tokens = len(completion.token_ids)
        if not (said.text or said.thinking or said.calls or logprobs):
            return b""
        return self._line(said, logprobs).encode("utf-8")

    def last_chunks(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        return self._answer(output, _Said(), None).model_dump_json().encode("utf-8") + b"\n"

    def whole(self, outputs: Sequence[RequestOutput]) -> BaseModel:
        (output,) = outputs
        (completion,) = output.outputs
        said = self._read(completion.text, is_finished=True)
        return self._answer(output, said, self._logprobs(completion, 0))

    def _read(self, text: str, *, is_finished: bool) -> _Said:
        said = _Said()
        if not text and not is_finished:
            return said
        for part in self._reader.read(text, is_finished=is_finished):
            match part:
                case TextPart():
                    said.text += part.text
                case ReasoningPart():
                    said.thinking += part.text
                case CallPart():
                    self._end_call(said)
                    self._call = part
                case ArgumentsPart():
                    self._arguments += part.text
        if is_finished:
            self._end_call(said)
        return said

    def _end_call(self, said: _Said) -> None:
        """The call that was arriving is complete, or as complete as it will be."""
        if self._call is not None:
            function = OllamaCalledFunction(
                index=self._call.index,
                name=self._call.name,
                arguments=_object(self._arguments),
            )
            said.calls.append(OllamaAnsweredCall(id=self._call.id, function=function))
        self._call, self._arguments = None, ""

    def _line(self, said: _Said, logprobs: list[Any] | None) -> str:
        line = f'{self._head}{_now()}"{self._open}{json_string(said.text)}'
        if said.thinking:
            line += f',"thinking":{json_string(said.thinking)}'
        if said.calls:
            calls = [call.model_dump() for call in said.calls]
            line += f',"tool_calls":{json.dumps(calls, ensure_ascii=False)}'
        if self._is_chat:
            line += "}"
        if logprobs:
            line += f',"logprobs":{json.dumps(logprobs)}'
        return line + ',"done":false}\n'

    def _answer(self, output: RequestOutput, said: _Said, logprobs: list[Any] | None) -> BaseModel:
        head = {
            "model": self._model,
            "created_at": _now(),
            "logprobs": logprobs,
            **_figures(output),
        }
        thinking = said.thinking or None
        if not self._is_chat:
            return OllamaGenerateAnswer(response=said.text, thinking=thinking, **head)
        message = OllamaAnswerMessage(
            content=said.text, thinking=thinking, tool_calls=said.calls or None
        )
        return OllamaChatAnswer(message=message, **head)

    def _logprobs(self, completion: CompletionOutput, start: int) -> list[Any] | None:
        if self._num_logprobs is None or completion.logprobs is None:
            return None
        positions = completion.logprobs[start:]
        written = chat_logprobs(self._served.tokenizer, positions, self._num_logprobs)
        return cast("list[Any]", written.model_dump()["content"])


def load_answer(model: str, *, is_chat: bool) -> BaseModel:
    """To a request that only wants the model to be loaded, which it is."""
    if is_chat:
        message = OllamaAnswerMessage(content="")
        return OllamaChatAnswer(model=model, created_at=_now(), message=message, done_reason="load")
    return OllamaGenerateAnswer(model=model, created_at=_now(), response="", done_reason="load")


def _object(arguments: str) -> dict[str, Any]:
    """What has arrived of an object, if the answer was cut off."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _figures(output: RequestOutput) -> dict[str, Any]:
    """How it ended, and how long each part of it took."""
    (completion,) = output.outputs
    metrics = output.metrics
    end_s = metrics.finished_time or metrics.last_token_time or metrics.arrival_time
    return {
        "done_reason": "length" if completion.finish_reason == "length" else "stop",
        "total_duration": _nanoseconds(end_s - metrics.arrival_time),
        "load_duration": 0,
        "prompt_eval_count": len(output.prompt_token_ids),
        "prompt_eval_duration": _nanoseconds(metrics.prefill_s),
        "eval_count": len(completion.token_ids),
        "eval_duration": _nanoseconds(metrics.decode_s),
    }


def _nanoseconds(time_s: float | None) -> int:
    """At least 1: clients divide by it."""
    return max(1, round(1e9 * (time_s or 0.0)))


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
