"""A JSON object of a request, read field by field; errors name the place that is at fault.

For objects of many kinds in one list, such as the blocks of a message, where a model per kind would
hide the place behind the names of the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.server.errors import ApiError, bad_request

_MAX_SHOWN = 200


class JsonFields:
    """One object.  Absent and null are the same."""

    def __init__(self, value: Any, place: str) -> None:
        """Raises `ApiError` unless it is an object."""
        if not isinstance(value, dict):
            raise wrong(place, "must be an object")
        self._values: Mapping[str, Any] = value
        self._read: set[str] = set()
        self.place = place

    def get(self, name: str) -> Any:
        """Whatever it is."""
        self._read.add(name)
        return self._values.get(name)

    def text(self, name: str) -> str:
        """Raises `ApiError` unless there is a text."""
        value = self.get(name)
        if not isinstance(value, str):
            raise wrong(self.place_of(name), "is required" if value is None else "must be a string")
        return value

    def object(self, name: str) -> dict[str, Any]:
        """Raises `ApiError` unless there is an object."""
        value = self.get(name)
        if not isinstance(value, dict):
            said = "is required" if value is None else "must be an object"
            raise wrong(self.place_of(name), said)
        return value

    def items(self, name: str, max_items: int) -> list[Any]:
        """Empty if there is none.  Raises `ApiError`."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise wrong(self.place_of(name), "must be a list")
        if len(value) > max_items:
            raise wrong(self.place_of(name), f"takes at most {max_items} items")
        return value

    def flag(self, name: str) -> bool:
        """False if there is none.  Raises `ApiError`."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong(self.place_of(name), "must be true or false")
        return bool(value)

    def unread(self) -> list[str]:
        """Names of what is given and nobody asked for."""
        values = self._values
        return [name for name in values if name not in self._read and values[name] is not None]

    def place_of(self, name: str) -> str:
        return f"{self.place}.{name}"


def wrong(place: str, said: str) -> ApiError:
    """A field at fault."""
    place = place[:_MAX_SHOWN]
    return bad_request(f"{place} {said}", param=place)
