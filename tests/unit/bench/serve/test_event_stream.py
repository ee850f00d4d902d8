"""Server-sent events: any split and any line end give the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.bench.serve import event_stream
from chairlift.bench.serve.event_stream import EventStream, EventStreamError

WIRE = (
    ": ping\n\n"
    'data: {"a":1}\n\n'
    "data:no space\n\n"
    "event: x\nid: 7\ndata: two\ndata: lines\nretry: 5\n\n"
    "data:  a space is kept\n\n"
    "data\n\n"
    "\n\n: another\n\ndatabase: no\n\n"
    "data: é中\n\n"
    "data: [DONE]\n\n"
    "data: never ended"
)
EVENTS = ['{"a":1}', "no space", "two\nlines", " a space is kept", "", "é中", "[DONE]"]


def events(*pieces: bytes) -> list[str]:
    stream = EventStream()
    return [event.decode() for piece in pieces for event in stream.feed(piece)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_packets_do_not_matter(end: str, size: int, mark: str) -> None:
    data = (mark + WIRE).replace("\n", end).encode()
    assert events(*(data[i : i + size] for i in range(0, len(data), size))) == EVENTS


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=9)


@settings(deadline=None, derandomize=True)
@given(st.lists(LINE, max_size=5), st.data())
def test_what_was_sent_is_what_comes(texts: list[str], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    wire = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=9)))
    edges = [0, *cuts, len(wire)]
    assert events(*(wire[a:b] for a, b in zip(edges, edges[1:], strict=False))) == texts


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 10)
    stream = EventStream()
    assert stream.feed(b"data: 1234") == []
    with pytest.raises(EventStreamError, match="longer than 10 bytes"):
        stream.feed(b"5")
