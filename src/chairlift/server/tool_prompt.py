"""Tools for models whose chat template knows nothing of them: all becomes plain messages.

What the model is told, and what it is to write, is in the form of Hermes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chairlift.server.protocol.tools import ToolUse
from chairlift.server.tool_parsers.hermes import CLOSE, OPEN

Message = dict[str, Any]


def with_tools_as_text(
    messages: Sequence[Message], use: ToolUse | None, *, takes_system: bool = True
) -> list[Message]:
    """Calls and results of earlier turns as text, and the tools in the first, a system message.

    `messages` are as chat templates read them.  Where the template takes no system message, the
    tools stand in front of the first of the user's.
    """
    turns: list[Message] = []
    for message in messages:
        turn = _plain(message)
        is_result = message["role"] == "tool"
        if is_result and turns and turns[-1].get("is_result"):
            turns[-1]["content"] += "\n" + turn["content"]
        else:
            turns.append(turn | ({"is_result": True} if is_result else {}))
    for turn in turns:
        turn.pop("is_result", None)
    if use is None:
        return turns
    if not takes_system:
        return _with_tools_for_user(turns, use)
    if turns[0]["role"] != "system":
        return [{"role": "system", "content": _offer(use)}, *turns]
    first = {**turns[0], "content": f"{_text(turns[0])}\n\n{_offer(use)}"}
    return [first, *turns[1:]]


def _with_tools_for_user(turns: Sequence[Message], use: ToolUse) -> list[Message]:
    found = next((i for i, turn in enumerate(turns) if turn["role"] == "user"), None)
    if found is None:
        return [{"role": "user", "content": _offer(use)}, *turns]
    told = {**turns[found], "content": f"{_offer(use)}\n\n{_text(turns[found])}"}
    return [*turns[:found], told, *turns[found + 1 :]]


def _plain(message: Message) -> Message:
    """One message without anything but text."""
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{_text(message)}\n</tool_response>",
        }
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [_written(call["function"]) for call in calls]
    said = _text(message)
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return plain | {"content": "\n".join([said, *written] if said else written)}


def _written(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"


def _offer(use: ToolUse) -> str:
    tools = "\n".join(
        json.dumps(tool.for_template(), ensure_ascii=False) for tool in use.callable_tools
    )
    must = " You must call one." if use.must_call else ""
    return (
        "You can call functions. These are there, each with a JSON schema of its arguments:\n"
        f"<tools>\n{tools}\n</tools>\n"
        "To call one, answer with its name and arguments as JSON between tags, like this:\n"
        f'{OPEN}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n{CLOSE}\n'
        f"If no function helps, answer as usual.{must}"
    )


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""
