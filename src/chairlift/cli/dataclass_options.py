"""Command-line options made from the fields of a dataclass, so that the two cannot differ.

`@with_options(EngineConfig, SamplingParams)` adds one option per field to a command and hands it
the values that the user gave as one dict per class.  An option that was not given is not in the
dict: the dataclass's own default, or the model's, holds.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from chairlift.cli.field_docs import field_docs
from chairlift.errors import ConfigError

Values = dict[str, Any]

_MORE_FLAGS = {"model": ["-m"], "tool_parser": ["--tool-call-parser"]}
"""Other spellings that people know."""


def with_options(
    *kinds: type,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose last parameters are one dict for each of `kinds`.

    Where two classes have a field of the same name, the first one gets it.  `defaults` are values
    of this command where the dataclass has others.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        own, dicts = own[: -len(kinds)], own[-len(kinds) :]
        owners: dict[str, int] = {}
        options = []
        for index, kind in enumerate(kinds):
            hints = get_type_hints(kind)
            for field in dataclasses.fields(kind):
                is_wanted = only is None or field.name in only
                if is_wanted and field.name not in without and field.name not in owners:
                    owners[field.name] = index
                    default = (defaults or {}).get(field.name, _default(field))
                    help_text = field_docs(kind).get(field.name, "")
                    options.append(_parameter(field.name, hints[field.name], default, help_text))

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given: list[Values] = [{} for _ in kinds]
            for name, index in owners.items():
                value = values.pop(name)
                if value is not None and value != []:
                    given[index][name] = _parse(name, value)
            for name, value in (defaults or {}).items():
                given[owners[name]].setdefault(name, value)
            parts = {part.name: value for part, value in zip(dicts, given, strict=True)}
            command(**values, **parts)

        parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*parameters, *options]}
        del run.__wrapped__  # its signature is not this one's
        return run

    return decorate


def _default(field: dataclasses.Field[Any]) -> Any:
    return None if field.default is dataclasses.MISSING else field.default


def _parameter(name: str, hint: Any, default: Any, help_text: str) -> inspect.Parameter:
    """A keyword-only parameter that Typer reads; None means that it was not given."""
    kind, metavar = _option_type(hint)
    flag = "--" + name.replace("_", "-")
    flags = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
    flags += _MORE_FLAGS.get(name, ())
    if default is not None and default != () and "efault" not in help_text:
        shown = ("no", "yes")[default] if isinstance(default, bool) else default
        help_text = f"{help_text} Default: {shown}."
    option = typer.Option(None, *flags, help=help_text.strip(), metavar=metavar)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None
    )


def _option_type(hint: Any) -> tuple[Any, str | None]:
    """The type that Typer parses for a field's type, and what the help shows for the value."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        hint = str if str in members else members[0]
    if get_origin(hint) is Literal:
        return str, "|".join(get_args(hint))
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return list[str], "TOKEN_ID=NUMBER"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return list[get_args(hint)[0]], None  # type: ignore[misc]
    return hint, None


def _parse(name: str, value: Any) -> Any:
    """Values that one option text holds two of."""
    if name != "logit_bias":
        return value
    bias: dict[int, float] = {}
    for text in value:
        token_id, _, number = text.partition("=")
        try:
            bias[int(token_id)] = float(number)
        except ValueError:
            raise ConfigError(
                f"logit_bias takes TOKEN_ID=NUMBER, such as 42=-5, got {text!r}", field=name
            ) from None
    return bias
