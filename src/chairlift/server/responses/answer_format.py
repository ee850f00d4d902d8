"""How outputs become a response, whole or as a stream of events in their strict order.

created, in_progress, then for each item its own events from added to done, and at last
completed, incomplete, or error and failed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.answer_parts import ReaderFactory, TextPart
from chairlift.server.errors import ApiError
from chairlift.server.logprobs import chat_logprobs
from chairlift.server.protocol.chat import TokenLogprobs
from chairlift.server.protocol.response import (
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
)
from chairlift.server.protocol.response_items import Status
from chairlift.server.protocol.usage import usage_of
from chairlift.server.responses.output_items import EventNumbers, ResponseOutput, event
from chairlift.server.sse import DONE, HEADERS, PING, json_string
from chairlift.tokenizer.tokenizer import Tokenizer


class ResponsesFormat:
    """One answer to a request for a response.  Is the wire of its own stream, for errors in it."""

    stream_headers: Sequence[tuple[bytes, bytes]] = HEADERS
    more_body_types: Collection[bytes] = ()
    ping = PING
    end = DONE

    def __init__(
        self,
        response: Response,
        *,
        new_reader: ReaderFactory,
        tokenizer: Tokenizer,
        num_logprobs: int | None,
        has_summary: bool,
        has_timings: bool,
        num_reasoning_tokens: Callable[[RequestOutput], int] = lambda output: 0,
    ) -> None:
        """`response`: as it is before anything has been said.  `has_summary`: its thoughts are
        told as a summary.  `num_reasoning_tokens`: how many tokens of a whole output they are."""
        self._response = response
        self._tokenizer = tokenizer
        self._reader = new_reader()
        self._num_logprobs = num_logprobs
        self._has_timings = has_timings
        self._num_reasoning_tokens = num_reasoning_tokens
        self._numbers = EventNumbers()
        self._output = ResponseOutput(self._numbers, has_summary=has_summary)
        self._has_begun = False
        self._num_chars = 0
        self._num_tokens = 0
        self._pending: list[TokenLogprobs] = []
        """Of tokens whose text is still to come."""
        self.final: Response | None = None
        """The response once it has ended, however it did."""

    # -- as a format -------------------------------------------------------------------------
    def chunks(self, output: RequestOutput) -> bytes:
        data = b"" if self._has_begun else self._begin()
        return data + self._read(output)

    def last_chunks(self, outputs: Sequence[RequestOutput]) -> bytes:
        assert self.final is not None
        return self._event(f"response.{self.final.status}", self.final)

    def whole(self, outputs: Sequence[RequestOutput]) -> Response:
        self._read(outputs[0])
        assert self.final is not None
        return self.final

    def ended_early(self, status: ResponseStatus, error: ApiError | None = None) -> Response:
        """The response with what there is of it, failed or cancelled."""
        self._output.cut_off()
        return self._end_early(status, error)

    # -- as a wire ---------------------------------------------------------------------------
    def error(self, error: ApiError) -> tuple[int, bytes]:
        return error.status, error.body()

    def error_event(self, error: ApiError) -> bytes:
        data = b"" if self._has_begun else self._begin()
        data += self._output.cut_off()
        failed = self._end_early("failed", error)
        told = (
            f'"code":{_json(error.code)},"message":{_json(error.message)}'
            f',"param":{_json(error.param)},{error.body().decode("ascii")[1:-1]}'
        )
        return data + event("error", self._numbers, told) + self._event("response.failed", failed)

    # -- both --------------------------------------------------------------------------------
    def _begin(self) -> bytes:
        self._has_begun = True
        shown = f'"response":{self._response.model_dump_json()}'
        created = event("response.created", self._numbers, shown)
        return created + event("response.in_progress", self._numbers, shown)

    def _read(self, output: RequestOutput) -> bytes:
        """Events for what is new; with the last of it the response has ended."""
        (completion,) = output.outputs
        num_tokens = len(completion.token_ids)
        self._note_logprobs(completion, num_tokens)
        self._num_tokens = num_tokens
        text = completion.text[self._num_chars :]
        self._num_chars += len(text)
        data = b""
        for part in self._reader.read(text, is_finished=completion.finished):
            is_text = isinstance(part, TextPart)
            data += self._output.add(part, self._take_pending() if is_text else ())
        if completion.finished and self.final is None:
            status: Status = "incomplete" if completion.finish_reason == "length" else "completed"
            data += self._output.end(status, self._take_pending())
            self.final = self._finished(output)
        return data

    def _finished(self, output: RequestOutput) -> Response:
        usage = usage_of([output], has_timings=self._has_timings)
        is_whole = output.outputs[0].finish_reason != "length"
        return self._response.model_copy(
            update={
                "status": "completed" if is_whole else "incomplete",
                "completed_at": int(time.time()) if is_whole else None,
                "incomplete_details": (
                    None if is_whole else IncompleteDetails(reason="max_output_tokens")
                ),
                "output": self._output.items,
                "usage": ResponseUsage.of(
                    usage, num_reasoning_tokens=self._num_reasoning_tokens(output)
                ),
            }
        )

    def _end_early(self, status: ResponseStatus, error: ApiError | None) -> Response:
        told = None
        if error is not None:
            code = "rate_limit_exceeded" if error.status == 429 else "server_error"
            told = ResponseError(code=code, message=error.message)
        self.final = self._response.model_copy(
            update={"status": status, "error": told, "output": self._output.items}
        )
        return self.final

    def _event(self, kind: str, response: Response) -> bytes:
        return event(kind, self._numbers, f'"response":{response.model_dump_json()}')

    def _note_logprobs(self, completion: CompletionOutput, num_tokens: int) -> None:
        if self._num_logprobs is not None and completion.logprobs is not None:
            positions = completion.logprobs[self._num_tokens : num_tokens]
            self._pending += chat_logprobs(self._tokenizer, positions, self._num_logprobs).content

    def _take_pending(self) -> list[TokenLogprobs]:
        pending, self._pending = self._pending, []
        return pending


def _json(text: str | None) -> str:
    return "null" if text is None else json_string(text)
