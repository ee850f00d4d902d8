"""Lengths on the command line."""

from __future__ import annotations

import pytest

from chairlift.bench.length_range import LengthRange, parse_length_range
from chairlift.errors import ConfigError


def test_numbers_and_ranges_of_tokens() -> None:
    assert parse_length_range("128", field="x") == LengthRange(128, 128)
    assert parse_length_range("32-512", field="x") == LengthRange(32, 512)
    assert [str(LengthRange(*ends)) for ends in ((7, 7), (1, 2))] == ["7", "1-2"]


@pytest.mark.parametrize("text", ["", "0", "-3", "5-", "5-4", "a", "1-b", "1.5", "1-2-3"])
def test_other_lengths_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="output_len takes a number") as caught:
        parse_length_range(text, field="output_len")
    assert caught.value.field == "output_len"
