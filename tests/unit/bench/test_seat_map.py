"""Seats: who sits where, and what counts as waste."""

from __future__ import annotations

from chairlift.bench.seat_map import SeatMap, seat_columns
from unit.bench.step_records import make_record


def test_a_freed_seat_goes_to_the_next_rider() -> None:
    seats = SeatMap(2)
    seats.update(make_record(0, {"a": "prefill", "b": "prefill"}))
    seats.update(make_record(1, {"a": "decode", "b": "decode"}, finished=(("a", "length"),)))
    assert seats.riders == ["a", "b"]
    column = seats.update(make_record(2, {"b": "decode", "c": "prefill"}))
    assert seats.riders == ["c", "b"]
    assert column.states == ("prefill", "decode")


def test_padding_keeps_its_seat_until_the_batch_ends() -> None:
    columns = seat_columns(
        [
            make_record(0, {"a": "decode", "b": "decode"}, finished=(("a", "length"),)),
            make_record(1, {"a": "padding", "b": "decode"}, finished=(("b", "length"),)),
            make_record(2, {"c": "prefill"}),
        ],
        2,
    )
    assert [column.states for column in columns] == [
        ("decode", "decode"),
        ("padding", "decode"),
        ("prefill", "empty"),
    ]


def test_one_that_does_not_ride_keeps_its_seat() -> None:
    seats = SeatMap(2)
    seats.update(make_record(0, {"a": "prefill", "b": "prefill"}))
    assert seats.update(make_record(1, {"b": "prefill"})).states == ("empty", "prefill")
    assert seats.riders == ["a", "b"]


def test_empty_seats_are_waste_only_while_somebody_waits() -> None:
    nobody, one, many = seat_columns(
        [
            make_record(0, {"a": "decode"}, num_waiting=0),
            make_record(1, {"a": "decode"}, num_waiting=1),
            make_record(2, {"a": "decode"}, num_waiting=9),
        ],
        4,
    )
    assert (nobody.num_wasted, one.num_wasted, many.num_wasted) == (0, 1, 3)


def test_padding_is_waste_whoever_waits() -> None:
    (column,) = seat_columns([make_record(0, {"a": "decode", "b": "padding"})], 2)
    assert column.num_wasted == 1
