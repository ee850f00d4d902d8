"""Messages in channels: `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>...`.

gpt-oss: analysis is thought, final is said, and what is addressed to a function is a call of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.server.growing_text import Emit, GrowingText, Reading, Script
from chairlift.server.tool_parsers.call_grammar import CallableTool, Grammar
from chairlift.server.tool_parsers.offered_tools import OfferedTools

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_ENDS = (END, CALL, RETURN, START, CHANNEL)
_FUNCTION = "functions."
MAX_HEADER_LENGTH = 200


def read_harmony(source: GrowingText, tools: OfferedTools) -> Script:
    marker = yield from source.until(MARKERS, source.say)
    while marker:
        if marker in (START, CHANNEL):
            marker = yield from _read_message(source)
        else:
            marker = yield from source.until(MARKERS, source.say)


def _read_message(source: GrowingText) -> Reading[str]:
    """Behind its first marker; the marker after it."""
    header: list[str] = []
    marker = yield from source.until((MESSAGE, END, CALL, RETURN), header.append)
    if marker != MESSAGE:
        if len("".join(header)) > MAX_HEADER_LENGTH:  # no header, but a text behind a stray marker
            source.say("".join(header))
        return marker
    words = "".join(header).replace(CHANNEL, " ").replace(CONSTRAIN, " ").split()
    recipient = next((word[3:] for word in words if word.startswith("to=")), "")
    emit = _writer(source, words, recipient)
    has_any = False

    def hand_on(text: str) -> None:
        nonlocal has_any
        has_any = True
        emit(text)

    marker = yield from source.until(_ENDS, hand_on)
    if recipient.startswith(_FUNCTION) and not has_any and marker:
        source.add_arguments("{}")
    if emit == source.think:
        source.num_reasoning_chars = source.num_read
    return marker


def _writer(source: GrowingText, words: list[str], recipient: str) -> Emit:
    """Where a message goes.  Tools that are no functions are nobody's here: those are thoughts."""
    if recipient.startswith(_FUNCTION):
        source.begin_call(recipient.removeprefix(_FUNCTION))
        return source.add_arguments
    if recipient or "analysis" in words:
        return source.think
    return source.say


class HarmonyForm:
    """One call ends an answer, for its end is an end token."""

    def must(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        return f"({_write_messages(grammar, 'analysis')})? {_write_calls(grammar, tools)}"

    def may(self, grammar: Grammar, tools: Sequence[CallableTool], max_calls: int) -> str:
        before = (
            f"{_write_messages(grammar, 'analysis')} | {_write_messages(grammar, 'commentary')}"
        )
        final = f"{_header(grammar, 'final')} {grammar.any_text()}"
        return f"({before})* ({final} | {_write_calls(grammar, tools)})"


def write_final(grammar: Grammar, body: str) -> str:
    """An answer that says `body`, after thoughts if the model wants some."""
    thoughts = grammar.rule(f"({_write_messages(grammar, 'analysis')})?")
    return grammar.rule(f"{thoughts} {_header(grammar, 'final')} {body}")


def _header(grammar: Grammar, words: str) -> str:
    return f"{grammar.text(CHANNEL)} {grammar.text(words)} {grammar.text(MESSAGE)}"


def _write_messages(grammar: Grammar, channel: str) -> str:
    """One that another follows."""
    next_one = f"{grammar.text(START)} {grammar.text('assistant')}"
    return f"{_header(grammar, channel)} {grammar.text_to(END)} {next_one}"


def _write_calls(grammar: Grammar, tools: Sequence[CallableTool]) -> str:
    calls = []
    for tool in tools:
        to = grammar.text(f"commentary to={_FUNCTION}{tool.name} ")
        kind = f"{grammar.text(CONSTRAIN)} {grammar.text('json')} {grammar.text(MESSAGE)}"
        calls.append(f"{grammar.text(CHANNEL)} {to} {kind} {grammar.json(tool.schema)}")
    return grammar.either(calls)
