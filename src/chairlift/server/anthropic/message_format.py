"""How outputs become a message, whole or as a stream of events.

```
message_start
  content_block_start   content_block_delta ...   content_block_stop     for each block in turn
message_delta           why it ended, and the usage
message_stop
```
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pydantic_core import from_json

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)
from chairlift.server.anthropic.wire import named_event
from chairlift.server.chat_job import ChatWork
from chairlift.server.protocol.anthropic import (
    Block,
    MessageAnswer,
    MessageUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from chairlift.server.sse import json_string

SIGNATURE = "unsigned"
"""Of thoughts: clients send back none without one, and nobody here reads it."""
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = "event: content_block_delta\ndata: "


class MessageFormat:
    """One answer to a request for a message."""

    def __init__(self, work: ChatWork, *, id: str, model: str, shows_thinking: bool) -> None:
        self._reader = work.new_reader()
        self._stop = frozenset(work.request.stop)
        self._max_tokens = work.request.asked_tokens or 0
        self._id = id
        self._model = model
        self._shows_thinking = shows_thinking
        self._num_chars = 0
        self._has_started = False
        self._num_blocks = 0
        self._open: type[AnswerPart] | None = None
        """What the last block consists of, until it is closed."""
        self._has_calls = False

    def chunks(self, output: RequestOutput) -> bytes:
        (completion,) = output.outputs
        data = ""
        if not self._has_started:
            self._has_started = True
            data += self._start(output)
        is_finished = completion.finish_reason is not None
        text = completion.text[self._num_chars :]
        self._num_chars += len(text)
        if text or is_finished:
            for part in self._reader.read(text, is_finished=is_finished):
                data += self._events(part)
        return data.encode("utf-8")

    def last_chunks(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        (completion,) = output.outputs
        reason, sequence = self._stop_reason(completion, has_calls=self._has_calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = _usage(output).model_dump()
        event = {"type": "message_delta", "delta": delta, "usage": usage}
        end = self._close().encode("utf-8")
        return end + named_event("message_delta", json.dumps(event).encode("ascii")) + _STOP

    def whole(self, outputs: Sequence[RequestOutput]) -> MessageAnswer:
        (output,) = outputs
        (completion,) = output.outputs
        parts = self._reader.read(completion.text, is_finished=True)
        blocks = list(_blocks(parts, shows_thinking=self._shows_thinking))
        has_calls = any(isinstance(block, ToolUseBlock) for block in blocks)
        reason, sequence = self._stop_reason(completion, has_calls=has_calls)
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=blocks,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage(output),
        )

    def _start(self, output: RequestOutput) -> str:
        message = MessageAnswer(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=_usage(output),
        )
        return (
            f'event: message_start\ndata: {{"type":"message_start"'
            f',"message":{message.model_dump_json()}}}\n\n'
        )

    def _events(self, part: AnswerPart) -> str:
        """What a part adds, and the ends and beginnings of blocks around it."""
        if isinstance(part, TextPart):
            start = "" if self._open is TextPart else self._begin(part, '"type":"text","text":""')
            return start + self._delta(f'"type":"text_delta","text":{json_string(part.text)}')
        if isinstance(part, ReasoningPart):
            begun = '"type":"thinking","thinking":"","signature":""'
            start = "" if self._open is ReasoningPart else self._begin(part, begun)
            text = json_string(part.text)
            if not self._shows_thinking:
                return start
            return start + self._delta(f'"type":"thinking_delta","thinking":{text}')
        if isinstance(part, CallPart):
            self._has_calls = True
            id, name = json_string(part.id), json_string(part.name)
            return self._begin(part, f'"type":"tool_use","id":{id},"name":{name},"input":{{}}')
        text = json_string(part.text)
        return self._delta(f'"type":"input_json_delta","partial_json":{text}')

    def _begin(self, part: AnswerPart, block: str) -> str:
        closed = self._close()
        self._open = type(part)
        self._num_blocks += 1
        return (
            f'{closed}event: content_block_start\ndata: {{"type":"content_block_start"'
            f',"index":{self._num_blocks - 1},"content_block":{{{block}}}}}\n\n'
        )

    def _delta(self, delta: str) -> str:
        index = self._num_blocks - 1
        return f'{_DELTA}{{"type":"content_block_delta","index":{index},"delta":{{{delta}}}}}\n\n'

    def _close(self) -> str:
        """The end of the last block, if there is one."""
        if self._open is None:
            return ""
        signed = ""
        if self._open is ReasoningPart:
            signed = self._delta(f'"type":"signature_delta","signature":"{SIGNATURE}"')
        self._open = None
        index = self._num_blocks - 1
        return (
            f"{signed}event: content_block_stop\n"
            f'data: {{"type":"content_block_stop","index":{index}}}\n\n'
        )

    def _stop_reason(
        self, completion: CompletionOutput, *, has_calls: bool
    ) -> tuple[StopReason, str | None]:
        """Why it ended, and the stop string if it was one."""
        if completion.finish_reason == "length":
            is_asked = len(completion.token_ids) >= self._max_tokens
            return "max_tokens" if is_asked else "model_context_window_exceeded", None
        found = completion.stop_reason
        if isinstance(found, str) and found in self._stop:
            return "stop_sequence", found
        return "tool_use" if has_calls else "end_turn", None


def _blocks(parts: Sequence[AnswerPart], *, shows_thinking: bool) -> Iterator[Block]:
    """The blocks of a whole answer: neighbouring parts of one kind make one."""
    texts: list[str] = []
    head: AnswerPart | None = None
    for part in parts:
        if head is not None and not _goes_on(head, part):
            yield _block(head, "".join(texts), shows_thinking=shows_thinking)
            head, texts = None, []
        head = head or part
        if not isinstance(part, CallPart):
            texts.append(part.text)
    if head is not None:
        yield _block(head, "".join(texts), shows_thinking=shows_thinking)


def _goes_on(head: AnswerPart, part: AnswerPart) -> bool:
    if isinstance(head, CallPart):
        return isinstance(part, ArgumentsPart)
    return type(head) is type(part)


def _block(head: AnswerPart, text: str, *, shows_thinking: bool) -> Block:
    if isinstance(head, CallPart):
        return ToolUseBlock(id=head.id, name=head.name, input=_input(text))
    if isinstance(head, ReasoningPart):
        return ThinkingBlock(thinking=text if shows_thinking else "", signature=SIGNATURE)
    return TextBlock(text=text)


def _input(arguments: str) -> dict[str, object]:
    """As clients of streams read them: what has arrived of an object, if the answer was cut off."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(output: RequestOutput) -> MessageUsage:
    num_cached = output.num_cached_tokens
    return MessageUsage(
        input_tokens=len(output.prompt_token_ids) - num_cached,
        cache_read_input_tokens=num_cached,
        output_tokens=sum(len(completion.token_ids) for completion in output.outputs),
    )
