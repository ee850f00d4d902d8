"""Tools: the functions that a model may call, and whether it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from chairlift.server.errors import bad_request
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.server.protocol.tool_schema import fault_of

MAX_TOOLS = 128
NAME_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"
MAX_DESCRIPTION_CHARS = 65_536

ToolMode = Literal["none", "auto", "required", "named"]


def _parameters(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be a JSON schema, an object")
    fault = fault_of(value)
    if fault is not None:
        raise ValueError(f"the schema {fault}")
    return value


Parameters = Annotated[
    dict[str, Any], BeforeValidator(_parameters), WithJsonSchema({"type": "object"})
]


class FunctionDefinition(StrictModel):
    """What a tool is called, what it does, and what it takes."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    parameters: Parameters | None = None
    """JSON schema of the arguments, an object; without one, any object."""
    strict: bool = False
    """Whether the arguments of every call must fit the schema."""


class FunctionTool(StrictModel):
    """One tool."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        function: dict[str, Any] = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": self.function.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are to be called; `name` of the one that must be, if that is so."""

    mode: ToolMode
    name: str | None = None


def _tool_choice(value: Any) -> ToolChoice:
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return ToolChoice(mode=value)  # type: ignore[arg-type]
    if isinstance(value, dict):
        function = value.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if value.get("type") == "function" and isinstance(name, str):
            return ToolChoice(mode="named", name=name)
    raise ValueError(
        "must be none, auto, required,"
        ' or {"type": "function", "function": {"name": ...}} with the name of a tool'
    )


ToolChoiceField = Annotated[
    Any,
    BeforeValidator(_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                        },
                    },
                    "required": ["type", "function"],
                },
            ]
        }
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that an answer may call; there is at least one."""

    tools: tuple[FunctionTool, ...]
    choice: ToolChoice
    is_parallel: bool
    """Whether it may call several, or one several times."""

    @property
    def must_call(self) -> bool:
        return self.choice.mode in ("required", "named")

    @property
    def is_named(self) -> bool:
        return self.choice.mode == "named"

    @property
    def max_calls(self) -> int | None:
        """In one answer; None: any number."""
        return None if self.is_parallel and not self.is_named else 1

    @property
    def callable_tools(self) -> tuple[FunctionTool, ...]:
        """The named one, or all."""
        if not self.is_named:
            return self.tools
        return tuple(tool for tool in self.tools if tool.function.name == self.choice.name)


def tool_use_of(
    tools: Sequence[FunctionTool] | None, choice: ToolChoice | None, *, is_parallel: bool
) -> ToolUse | None:
    """None: nothing may be called.  Raises `ApiError` for fields that contradict each other."""
    names = set()
    for index, tool in enumerate(tools or ()):
        if tool.function.name in names:
            raise bad_request(
                f"tools[{index}].function.name: there is a tool {tool.function.name!r} already",
                param=f"tools[{index}].function.name",
            )
        names.add(tool.function.name)
    choice = choice or ToolChoice("auto")
    if choice.mode == "named" and choice.name not in names:
        shown = (choice.name or "")[:64]
        raise bad_request(
            f"tool_choice names {shown!r}, which is not in tools", param="tool_choice"
        )
    if choice.mode == "required" and not names:
        raise bad_request("tool_choice: required needs tools", param="tool_choice")
    if choice.mode == "none" or not tools:
        return None
    return ToolUse(tools=tuple(tools), choice=choice, is_parallel=is_parallel)
