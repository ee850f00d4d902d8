"""How models mark what they think before they speak, and which way a chat template tells of."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.server.growing_text import GrowingText, Script
from chairlift.server.tool_parsers import harmony


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningParser:
    """Thoughts stand between two markers, before everything else."""

    name: str
    """As vLLM calls it."""
    aliases: tuple[str, ...] = ()
    open: str
    close: str
    signs: tuple[str, ...]
    """A chat template with any of these means this way."""
    begins_inside: bool = False
    """Whether an answer begins with thoughts though nothing says so."""
    markers: tuple[str, ...]
    """Texts that may be control tokens."""

    def is_open(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins among thoughts."""
        end = prompt.rstrip()
        return end.endswith(self.open) or (self.begins_inside and not end.endswith(self.close))


def _tags(
    name: str, open: str, close: str, *aliases: str, begins_inside: bool = False
) -> ReasoningParser:
    return ReasoningParser(
        name=name,
        aliases=aliases,
        open=open,
        close=close,
        signs=() if begins_inside else (open, close),
        begins_inside=begins_inside,
        markers=(open, close),
    )


HARMONY = ReasoningParser(
    name="openai_gptoss",
    open="<|channel|>",
    close="<|end|>",
    signs=("<|channel|>",),
    markers=harmony.MARKERS,
)
"""Channels are read by the parser of tools: its messages are all in one order."""
_IN_ORDER = (
    HARMONY,
    _tags("qwen3", "<think>", "</think>", "glm45"),
    _tags("mistral", "[THINK]", "[/THINK]"),
    _tags("seed_oss", "<seed:think>", "</seed:think>"),
    _tags("deepseek_r1", "<think>", "</think>", begins_inside=True),
)
REASONING_PARSERS = {
    name: parser for parser in _IN_ORDER for name in (parser.name, *parser.aliases)
}
"""With aliases."""


def reasoning_parser_of_template(source: str) -> ReasoningParser | None:
    """None: answers are said, not thought."""
    for parser in _IN_ORDER:
        if any(sign in source for sign in parser.signs):
            return parser
    return None


def read_thoughts(source: GrowingText, parser: ReasoningParser, *, is_open: bool) -> Script:
    """Up to where the answer proper begins.  Line ends around the markers are left out."""
    source.keep()
    yield from source.skip_next_space()
    has_marker = bool((yield from source.take_one_of((parser.open,))))
    if not has_marker and not is_open:
        source.say(source.take_kept())
        return
    source.take_kept()
    yield from source.skip_next_space()
    space = ""

    def think(text: str) -> None:
        nonlocal space
        text = space + text
        thought = text.rstrip()
        space = text[len(thought) :]
        source.think(thought)
        source.num_reasoning_chars = source.num_read

    if (yield from source.until((parser.close,), think)):
        source.num_reasoning_chars = source.num_read
        yield from source.skip_next_space()
    else:
        source.think(space)
