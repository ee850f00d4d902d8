"""How the loaded model's answers are read, and which of its markers that takes.

Decided once per model, from its chat template or from the server's options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.errors import RequestError
from chairlift.server.answer_parts import PartReader, PlainReader, ReaderFactory
from chairlift.server.growing_text import GrowingText, Script, ScriptReader, new_call_id
from chairlift.server.protocol.tools import ToolUse
from chairlift.server.reasoning_parsers import (
    HARMONY,
    REASONING_PARSERS,
    ReasoningParser,
    read_thoughts,
    reasoning_parser_of_template,
)
from chairlift.server.tool_parsers.call_grammar import Thoughts
from chairlift.server.tool_parsers.families import (
    HERMES,
    TOOL_PARSER_NAMES,
    ToolParser,
    parser_of_template,
)
from chairlift.server.tool_parsers.harmony import read_harmony
from chairlift.server.tool_parsers.offered_tools import OfferedTools
from chairlift.tokenizer.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReading:
    """One model's ways."""

    tool_parser: ToolParser | None
    """None: what the model writes for a call is not known here, or not to be looked at."""
    reasoning: ReasoningParser | None
    takes_tools: bool
    """Whether the chat template writes the tools into the prompt itself."""
    takes_system: bool = True
    """Whether the chat template writes a system message into the prompt."""

    @classmethod
    def of_template(
        cls, template: ChatTemplate | None, *, tool_parser: str, reasoning_parser: str
    ) -> AnswerReading:
        """`tool_parser` and `reasoning_parser`: a name, auto or none."""
        source = (template.source or "") if template is not None else ""
        takes_tools = template is not None and _reads_tools(template)
        tools = TOOL_PARSER_NAMES.get(tool_parser)
        if tool_parser == "auto":
            tools = parser_of_template(source) if takes_tools else HERMES
        reasoning = REASONING_PARSERS.get(reasoning_parser)
        if reasoning_parser == "auto":
            reasoning = reasoning_parser_of_template(source)
        return cls(
            tool_parser=tools,
            reasoning=reasoning,
            takes_tools=takes_tools,
            takes_system=template is not None and _shows_system(template),
        )

    def calls_parser(self, use: ToolUse | None) -> ToolParser | None:
        """Reads the calls of an answer.  Calls that are made to be written need no known way."""
        if use is None:
            return None
        return self.tool_parser or (HERMES if use.must_call else None)

    def markers(self, use: ToolUse | None) -> Sequence[str]:
        """Texts that readers must see, though they may be control tokens."""
        parser = self.calls_parser(use)
        return (
            *(parser.markers if parser is not None else ()),
            *(self.reasoning.markers if self.reasoning is not None else ()),
        )

    def thoughts(self, prompt: str) -> Thoughts | None:
        """What an answer to this prompt may begin with, where it does not go by channels."""
        reasoning = self.reasoning
        if reasoning is None or reasoning is HARMONY:
            return None
        return Thoughts(
            open=reasoning.open, close=reasoning.close, is_open=reasoning.is_open(prompt)
        )

    def reader_factory(self, use: ToolUse | None, prompt: str) -> ReaderFactory:
        """Readers for the answers to a request with this prompt."""
        parser = self.calls_parser(use)
        if parser is None and self.reasoning is None:
            return PlainReader
        return lambda: self._reader(parser, use, prompt)

    def _reader(self, parser: ToolParser | None, use: ToolUse | None, prompt: str) -> PartReader:
        source = GrowingText(
            max_calls=0 if use is None else use.max_calls,
            new_call_id=parser.new_call_id if parser is not None else new_call_id,
        )
        return ScriptReader(source, self._script(source, parser, use, prompt))

    def _script(
        self, source: GrowingText, parser: ToolParser | None, use: ToolUse | None, prompt: str
    ) -> Script:
        tools = offered(use)
        is_harmony = parser is not None and parser.read is read_harmony
        if is_harmony or (parser is None and self.reasoning is HARMONY):
            yield from read_harmony(source, tools)
            return
        if self.reasoning is not None:
            yield from read_thoughts(source, self.reasoning, is_open=self.reasoning.is_open(prompt))
        if parser is not None:
            yield from parser.read(source, tools)
        else:
            yield from source.rest(source.say)


def _reads_tools(template: ChatTemplate) -> bool:
    try:
        return template.reads("tools")
    except RequestError:
        return False  # it is broken, which every request will be told


def _shows_system(template: ChatTemplate) -> bool:
    """Some templates refuse a system message, and some leave it out."""
    word = "a-system-message"
    turns = [{"role": "system", "content": word}, {"role": "user", "content": "Hello"}]
    try:
        return word in template.render(turns)
    except RequestError:
        return False


def offered(use: ToolUse | None) -> OfferedTools:
    """What a parser may know of a request's tools."""
    tools = () if use is None else use.callable_tools
    return OfferedTools({tool.function.name: tool.function.parameters or {} for tool in tools})
