"""Chunks as bytes, made from parts that are the same for the whole stream."""

from __future__ import annotations

from chairlift.server.protocol.usage import Usage
from chairlift.server.sse import json_string


class StreamFrame:
    """The parts of a stream's chunks around their choices."""

    def __init__(
        self, *, id: str, object: str, created: int, model: str, fingerprint: str, has_usage: bool
    ) -> None:
        """`has_usage`: every chunk carries the key, null until the last."""
        head = (
            f'data: {{"id":{json_string(id)},"object":{json_string(object)},"created":{created}'
            f',"model":{json_string(model)},"system_fingerprint":{json_string(fingerprint)}'
            ',"choices":['
        )
        self._head = head.encode("utf-8")
        self._tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def chunk(self, choice: bytes, usage: Usage | None = None) -> bytes:
        """One event with one choice, and with the usage so far."""
        if usage is None:
            return self._head + choice + self._tail
        return self._head + choice + b'],"usage":' + _json(usage) + b"}\n\n"

    def usage_chunk(self, usage: Usage) -> bytes:
        """The event with the totals and no choice."""
        return self.chunk(b"", usage)


def _json(usage: Usage) -> bytes:
    return usage.model_dump_json(exclude_none=True).encode("utf-8")
