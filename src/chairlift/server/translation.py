"""What dialects share that say the same as a completion in other words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.server.exchange import Exchange
from chairlift.server.field_names import FieldNames
from chairlift.server.json_body import JsonObject
from chairlift.server.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A request as the body of a completion."""

    body: JsonObject
    names: FieldNames
    ignored: Sequence[str] = ()
    """Given fields that change nothing, in the dialect's names."""


def book_ignored(serving: Serving, exchange: Exchange, translation: Translation) -> None:
    """Name the dialect's own fields without effect beside those of the completion."""
    if translation.ignored:
        serving.metrics.fields_ignored(translation.ignored)
    others = map(translation.names.own, exchange.ignored)
    exchange.ignored = list(dict.fromkeys([*translation.ignored, *others]))
