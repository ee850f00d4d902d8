"""How outputs become text completions, whole or as a stream of pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.logprobs import TextLogprobWriter, joined
from chairlift.server.protocol.completion import (
    CompletionRequest,
    TextChoice,
    TextCompletion,
    TextLogprobs,
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
    has_begun: bool = False
    is_finished: bool = False
    writer: TextLogprobWriter | None = None


@dataclass(slots=True)
class _Shape:
    """What was asked about the answer."""

    n: int
    echo: bool
    num_logprobs: int | None
    skip_special_tokens: bool
    is_score: bool
    """Nothing is wanted but the prompt's own figures: the token that was made is left out."""


@dataclass(slots=True)
class _PromptState:
    """One prompt of the request."""

    index: int
    sent: list[_Sent]
    newest: RequestOutput | None = field(default=None)


class TextFormat:
    """One answer to a text completion request, of one prompt or many."""

    def __init__(
        self,
        request: CompletionRequest,
        served: ServedModel,
        *,
        id: str,
        created: int,
        request_ids: Sequence[str],
        has_timings: bool,
    ) -> None:
        """`request_ids`: the engine's names of the prompts, in their order."""
        self._id = id
        self._created = created
        self._served = served
        self._has_timings = has_timings
        self._has_usage = request.includes_usage
        self._has_running_usage = request.has_continuous_usage
        self._shape = _Shape(
            n=request.n,
            echo=request.echo,
            num_logprobs=request.logprobs,
            skip_special_tokens=request.skip_special_tokens,
            is_score=request.max_tokens == 0,
        )
        self._prompts: Mapping[str, _PromptState] = {
            request_id: _PromptState(index, [_Sent() for _ in range(request.n)])
            for index, request_id in enumerate(request_ids)
        }
        self._frame = StreamFrame(
            id=id,
            object="text_completion",
            created=created,
            model=served.names[0],
            fingerprint=served.fingerprint,
            has_usage=request.includes_usage,
        )

    def chunks(self, output: RequestOutput) -> bytes:
        state = self._prompts[output.request_id]
        state.newest = output
        usage = None
        if self._has_running_usage:
            usage = self._usage([s.newest for s in self._prompts.values() if s.newest is not None])
        data = b""
        for completion, sent in zip(output.outputs, state.sent, strict=True):
            index = state.index * self._shape.n + completion.index
            num_tokens = len(completion.token_ids)
            if not sent.is_finished and num_tokens > sent.num_tokens:
                data += self._piece(index, output, completion, sent, usage)
                sent.num_tokens = num_tokens
            if completion.finish_reason is not None and not sent.is_finished:
                sent.is_finished = True
                data += self._frame.chunk(_last_choice(index, completion), usage)
        return data

    def last_chunks(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._frame.usage_chunk(self._usage(outputs)) if self._has_usage else b""

    def whole(self, outputs: Sequence[RequestOutput]) -> TextCompletion:
        choices = []
        for prompt, output in enumerate(outputs):
            for place, completion in enumerate(_best(output.outputs, self._shape.n)):
                index = prompt * self._shape.n + place
                choices.append(self._choice(index, output, completion))
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._served.names[0],
            system_fingerprint=self._served.fingerprint,
            choices=choices,
            usage=self._usage(outputs),
        )

    def _piece(
        self,
        index: int,
        output: RequestOutput,
        completion: CompletionOutput,
        sent: _Sent,
        usage: Usage | None,
    ) -> bytes:
        """The chunk with a choice's new text; nothing while all of it is held back."""
        text = "" if self._shape.is_score else completion.text[sent.num_chars :]
        if not text and sent.has_begun and self._shape.num_logprobs is None:
            return b""
        sent.num_chars += len(text)
        logprobs = self._new_logprobs(output, completion, sent)
        if self._shape.echo and not sent.has_begun:
            text = self._prompt_text(output) + text
        sent.has_begun = True
        shown = "null" if logprobs is None else logprobs.model_dump_json()
        choice = (
            f'{{"index":{index},"text":{json_string(text)},"logprobs":{shown}'
            ',"finish_reason":null}'
        )
        return self._frame.chunk(choice.encode("utf-8"), usage)

    def _choice(
        self, index: int, output: RequestOutput, completion: CompletionOutput
    ) -> TextChoice:
        prompt = self._prompt_text(output) if self._shape.echo else ""
        text = "" if self._shape.is_score else completion.text
        finish_reason = "length" if self._shape.is_score else completion.finish_reason
        return TextChoice(
            index=index,
            text=prompt + text,
            logprobs=self._new_logprobs(output, completion, _Sent()),
            finish_reason=cast("str", finish_reason),  # type: ignore[arg-type]
            stop_reason=completion.stop_reason,
        )

    def _new_logprobs(
        self, output: RequestOutput, completion: CompletionOutput, sent: _Sent
    ) -> TextLogprobs | None:
        if self._shape.num_logprobs is None or completion.logprobs is None:
            return None
        parts = []
        if self._shape.echo and not sent.has_begun and output.prompt_logprobs is not None:
            writer = TextLogprobWriter(
                self._served.tokenizer, skip_special_tokens=output.prompt is not None
            )
            parts.append(writer.write(output.prompt_token_ids, output.prompt_logprobs))
        if sent.writer is None:
            sent.writer = TextLogprobWriter(
                self._served.tokenizer,
                skip_special_tokens=self._shape.skip_special_tokens,
                offset=len(self._prompt_text(output)) if self._shape.echo else 0,
                prompt_token_ids=output.prompt_token_ids,
            )
        if not self._shape.is_score:
            ids, positions = completion.token_ids, completion.logprobs
            parts.append(
                sent.writer.write(ids[sent.num_tokens :], positions[sent.num_tokens : len(ids)])
            )
        return joined(parts)

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._served.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def _usage(self, outputs: Sequence[RequestOutput]) -> Usage:
        num_hidden = 0
        if self._shape.is_score:
            num_hidden = sum(len(c.token_ids) for output in outputs for c in output.outputs)
        return usage_of(outputs, has_timings=self._has_timings, num_hidden_tokens=num_hidden)


def _best(completions: Sequence[CompletionOutput], n: int) -> Sequence[CompletionOutput]:
    """The n most likely per token, most likely first; all in their order if there are just n."""
    if len(completions) <= n:
        return completions
    return sorted(completions, key=_mean_logprob, reverse=True)[:n]


def _mean_logprob(completion: CompletionOutput) -> float:
    return (completion.cumulative_logprob or 0.0) / max(1, len(completion.token_ids))


def _last_choice(index: int, completion: CompletionOutput) -> bytes:
    """How the choice ended, in a chunk of its own."""
    text = (
        f'{{"index":{index},"text":"","logprobs":null,"finish_reason":'
        f'"{completion.finish_reason}","stop_reason":{json.dumps(completion.stop_reason)}}}'
    )
    return text.encode("utf-8")
