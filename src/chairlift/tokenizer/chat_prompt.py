"""From a conversation to token ids, such that nobody's words become control tokens.

The template's own markers are control tokens; the same characters in a message are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chairlift.errors import RequestError
from chairlift.tokenizer.chat_template import ChatTemplate
from chairlift.tokenizer.tokenizer import Tokenizer

_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Code points that Unicode keeps out of all text: one of them marks a spot for a moment."""


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    /,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    check_text: Callable[[str], None] = lambda text: None,
    **variables: Any,
) -> tuple[str, list[int]]:
    """The prompt's text and tokens.  Raises RequestError as `ChatTemplate.render` does.

    `tools` are somebody's words as messages are.  `check_text` sees the text before it is
    tokenized, and may raise.
    """
    control = tokenizer.special_texts_pattern()
    mark = None
    if _holds(messages, control) or _holds(tools, control):
        mark = _mark_for([*messages, *(tools or ())])
        messages = [_marked_message(message, control, mark) for message in messages]
        tools = _marked(tools, control, mark)
    text = template.render(
        messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
    )
    check_text(text)
    if mark is None:
        return text, tokenizer.encode(text)
    return text.replace(mark, ""), _encode_marked(tokenizer, text, control, mark)


def _holds(value: object, control: re.Pattern[str]) -> bool:
    """Whether any text in a message spells a control token."""
    if isinstance(value, str):
        return control.search(value) is not None
    if isinstance(value, Mapping):
        return any(_holds(item, control) for pair in value.items() for item in pair)
    return isinstance(value, list | tuple) and any(_holds(item, control) for item in value)


def _mark_for(messages: Sequence[Mapping[str, Any]]) -> str:
    shown = repr(messages)
    for mark in _NONCHARACTERS:
        if mark not in shown and f"{ord(mark):x}" not in shown:
            return mark
    raise RequestError("messages use all of Unicode's noncharacters", field="messages")


def _marked_message(
    message: Mapping[str, Any], control: re.Pattern[str], mark: str
) -> dict[str, Any]:
    """Its role stays as it is."""
    return {
        name: item if name == "role" else _marked(item, control, mark)
        for name, item in message.items()
    }


def _marked(value: Any, control: re.Pattern[str], mark: str) -> Any:
    """Breaks up what spells a control token, in every text and name."""
    if isinstance(value, str):
        return control.sub(lambda found: found[0][0] + mark + found[0][1:], value)
    if isinstance(value, Mapping):
        return {
            _marked(name, control, mark): _marked(item, control, mark)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_marked(item, control, mark) for item in value]
    return value


def _encode_marked(
    tokenizer: Tokenizer, text: str, control: re.Pattern[str], mark: str
) -> list[int]:
    """Tokens of the template's markers as such, and of everything between them as plain text."""
    ids: list[int] = []
    begin = 0
    for found in control.finditer(text):
        ids += _plain(tokenizer, text[begin : found.start()].replace(mark, ""))
        ids += tokenizer.encode(found[0], add_special_tokens=False)
        begin = found.end()
    ids += _plain(tokenizer, text[begin:].replace(mark, ""))
    return tokenizer.with_special_tokens(ids)


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    if not text:
        return []
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)
