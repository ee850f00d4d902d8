"""Which dialect an answer is written in."""

from __future__ import annotations

import json

from chairlift.server.errors import bad_request
from chairlift.server.wire import OPENAI, OpenAiWire, wire_of


def test_a_path_has_the_wire_of_the_nearest_path_above() -> None:
    other, deeper = OpenAiWire(), OpenAiWire()
    wires = {"/api": other, "/api/deep": deeper}
    assert wire_of("/api/chat", wires) is other and wire_of("/api", wires) is other
    assert wire_of("/api/deep/x", wires) is deeper
    assert wire_of("/apis", wires) is OPENAI and wire_of("/", wires) is OPENAI


def test_an_error_is_the_same_in_a_stream_and_in_an_answer() -> None:
    status, body = OPENAI.error(bad_request("no", param="x"))
    assert status == 400 and json.loads(body)["error"]["param"] == "x"
    assert OPENAI.error_event(bad_request("no", param="x")) == b"data: " + body + b"\n\n"
