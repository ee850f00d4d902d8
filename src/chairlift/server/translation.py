"""What dialects share that say the same as a completion in other words.

A request becomes the body of one; what is found wrong with that body, or named as without effect,
is told in the dialect's own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from chairlift.server.errors import ApiError
from chairlift.server.exchange import Exchange
from chairlift.server.json_body import JsonObject
from chairlift.server.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A request as the body of a completion."""

    body: JsonObject
    names: Mapping[str, str] = field(default_factory=dict)
    """Fields of the body that the dialect calls something else, and what; of several that fit,
    the longest counts."""
    ignored: Sequence[str] = ()
    """Given fields that change nothing, in the dialect's names."""


@contextmanager
def told_by_names(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of the block name fields as the dialect does."""
    try:
        yield
    except ApiError as error:
        raise _renamed(error, names) from None


def book_ignored(serving: Serving, exchange: Exchange, translation: Translation) -> None:
    """Name the dialect's own fields without effect beside those of the completion."""
    if translation.ignored:
        serving.metrics.fields_ignored(translation.ignored)
    others = [own_name(name, translation.names) for name in exchange.ignored]
    exchange.ignored = list(dict.fromkeys([*translation.ignored, *others]))


def own_name(name: str, names: Mapping[str, str]) -> str:
    """What the dialect calls a field of the completion."""
    for theirs in sorted(names, key=len, reverse=True):
        rest = name.removeprefix(theirs)
        if name.startswith(theirs) and not re.match(r"\w", rest):
            return names[theirs] + rest
    return name


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    if error.param is None:
        return error
    param, message = own_name(error.param, names), error.message
    if message.startswith(error.param):
        message = param + message.removeprefix(error.param)
    elif param not in message:
        message = f"{param}: {message}"
    return ApiError(
        error.status,
        message,
        type=error.type,
        code=error.code,
        param=param,
        headers=error.headers,
    )
