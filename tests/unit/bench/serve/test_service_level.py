"""The bounds of goodput."""

from __future__ import annotations

import pytest

from chairlift.bench.serve.service_level import parse_service_level
from chairlift.errors import ConfigError


def test_words_and_commas() -> None:
    level = parse_service_level(["ttft:500", "tpot:50,e2el:3e3"])
    assert level is not None
    assert level.bounds_ms == {"ttft": 500.0, "tpot": 50.0, "e2el": 3000.0}
    assert level.describe() == "ttft 500 ms, tpot 50 ms, e2el 3000 ms"


def test_no_words_no_level() -> None:
    assert parse_service_level([]) is None


@pytest.mark.parametrize(
    "word", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:nan", "ttft:inf", "itl:5", ":5"]
)
def test_what_is_no_bound_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="goodput takes NAME:MILLISECONDS"):
        parse_service_level([word])


def test_a_bound_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="once at most"):
        parse_service_level(["ttft:5", "ttft:6"])
