"""The families of tool parsers by name, and which of them a chat template asks for."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.server.growing_text import GrowingText, Script, new_call_id
from chairlift.server.tool_parsers import (
    bare_json,
    harmony,
    hermes,
    mistral,
    pythonic,
    xml_function,
)
from chairlift.server.tool_parsers.call_grammar import CallForm
from chairlift.server.tool_parsers.offered_tools import OfferedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParser:
    """How one family of models writes calls."""

    name: str
    """As vLLM calls it."""
    aliases: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    """Texts that may be control tokens: the parser has to see them, and the client must not."""
    signs: tuple[str, ...]
    """A chat template with any of these means this family."""
    read: Callable[[GrowingText, OfferedTools], Script]
    form: CallForm
    """How calls are written under a grammar."""
    new_call_id: Callable[[], str] = new_call_id


def _new_mistral_id() -> str:
    """Its templates refuse any other length."""
    return secrets.token_hex(5)[:9]


HERMES = ToolParser(
    name="hermes",
    markers=(hermes.OPEN, hermes.CLOSE),
    signs=("<tool_call>",),
    read=hermes.read_hermes,
    form=hermes.FORM,
)
_IN_ORDER = (
    ToolParser(
        name="openai",
        markers=harmony.MARKERS,
        signs=("<|channel|>",),
        read=harmony.read_harmony,
        form=harmony.HarmonyForm(),
    ),
    ToolParser(
        name="mistral",
        markers=(mistral.CALLS, mistral.ARGS, mistral.CALL_ID),
        signs=("[TOOL_CALLS]",),
        read=mistral.read_mistral,
        form=mistral.MistralForm(),
        new_call_id=_new_mistral_id,
    ),
    ToolParser(
        name="qwen3_coder",
        aliases=("qwen3_xml", "glm45"),
        markers=(
            xml_function.OPEN,
            xml_function.CLOSE,
            xml_function.KEY,
            xml_function.KEY_END,
            xml_function.VALUE,
            xml_function.VALUE_END,
        ),
        signs=("<function=", "<arg_key>"),
        read=xml_function.read_xml_function,
        form=xml_function.XmlForm(),
    ),
    HERMES,
    ToolParser(
        name="pythonic",
        aliases=("llama4_pythonic", "olmo3", "lfm2"),
        markers=(*pythonic.OPENERS, *pythonic.CLOSERS),
        signs=("[func_name1(", "<|tool_call_start|>", "<|python_start|>", "<function_calls>"),
        read=pythonic.read_pythonic,
        form=pythonic.FORM,
    ),
    ToolParser(
        name="llama3_json",
        aliases=("llama4_json",),
        markers=(bare_json.PYTHON_TAG,),
        signs=(bare_json.PYTHON_TAG, '{"name": function name, "parameters"'),
        read=bare_json.read_bare_json,
        form=bare_json.FORM,
    ),
)
"""The surest signs first."""
TOOL_PARSERS = {parser.name: parser for parser in _IN_ORDER}
TOOL_PARSER_NAMES = {
    name: parser for parser in _IN_ORDER for name in (parser.name, *parser.aliases)
}
"""With aliases."""


def parser_of_template(source: str) -> ToolParser | None:
    """None: the template's way of writing calls is not known here."""
    for parser in _IN_ORDER:
        if any(sign in source for sign in parser.signs):
            return parser
    return None
