"""What a dialect calls the fields of a completion, in errors and in lists of fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from chairlift.server.errors import ApiError


@dataclass(frozen=True, slots=True)
class FieldNames:
    """From the names of the body that a request has become, back to those of the request."""

    names: Mapping[str, str]
    """What is called something else, and what; of several that fit, the longest counts."""
    whole: Collection[str] = ()
    """Of the names: those whose inside looks different here, so that no place in it is told."""
    in_text: Collection[str] = ()
    """Of the names: those that mean nothing else, wherever a message mentions them."""
    has_param: bool = False
    """Errors of the dialect carry the field beside the message, which need not say it as well."""

    def own(self, name: str) -> str:
        """What the dialect calls a field of the completion."""
        for theirs in sorted(self.names, key=len, reverse=True):
            rest = name.removeprefix(theirs)
            if name.startswith(theirs) and not re.match(r"\w", rest):
                return self.names[theirs] + ("" if theirs in self.whole else rest)
        return name

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of the block name fields as the dialect does."""
        try:
            yield
        except ApiError as error:
            raise self._renamed(error) from None

    def _renamed(self, error: ApiError) -> ApiError:
        param, message = error.param, error.message
        if param is not None:
            param, message = self.own(param), self._message(message, param)
        for name in sorted(self.in_text, key=len, reverse=True):
            message = re.sub(rf"\b{re.escape(name)}\b", self.names[name], message)
        return ApiError(
            error.status,
            message,
            type=error.type,
            code=error.code,
            param=param,
            headers=error.headers,
        )

    def _message(self, message: str, theirs: str) -> str:
        ours = self.own(theirs)
        if self.has_param:
            return message.replace(theirs, ours)
        if message.startswith(theirs):
            return ours + message.removeprefix(theirs)
        return message if ours in message else f"{ours}: {message}"
