from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.errors import RequestError
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from chairlift.tokenizer.stop_strings import StopStringMatcher
from chairlift.tokenizer.tokenizer import Tokenizer


def cut_whole(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: the match that ends first; of those, the one that begins first."""
    matches = [
        (start + len(s), start, s)
        for s in stop
        for start in range(len(text))
        if text.startswith(s, start)
    ]
    if not matches:
        return text, None
    end, start, found = min(matches)
    return text[: end if include else start], found


def run(matcher: StopStringMatcher, deltas: list[str]) -> str:
    return "".join(map(matcher.push, deltas)) + matcher.flush()


def test_g2_stop_string_across_tokens_does_not_leak(byte_level_metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata)
    detokenizer = IncrementalDetokenizer(tokenizer)
    matcher = StopStringMatcher(["own fox"])
    shown = []
    for token_id in tokenizer.encode("The quick brown fox jumps"):
        shown.append(matcher.push(detokenizer.push([token_id])))
        assert "o" not in "".join(shown), "a part of the stop string leaked"
    assert "".join(shown) == "The quick br"
    assert matcher.stopped == "own fox"
    assert matcher.flush() == ""


letters = st.text("abc", max_size=30)


@given(
    deltas=st.lists(st.text("abc", max_size=6), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
def test_g3_joined_deltas_equal_text_cut_at_stop(
    deltas: list[str], stop: list[str], include: bool
) -> None:
    matcher = StopStringMatcher(stop, include_in_output=include)
    text, found = cut_whole("".join(deltas), stop, include)
    assert run(matcher, deltas) == text
    assert matcher.stopped == found


@given(text=letters, stop=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3))
def test_as_little_as_possible_is_held_back(text: str, stop: list[str]) -> None:
    matcher = StopStringMatcher(stop)
    shown = ""
    for index, character in enumerate(text, start=1):
        shown += matcher.push(character)
        if matcher.stopped:
            return
        seen = text[:index]
        held = max((n for s in stop for n in range(1, len(s)) if seen.endswith(s[:n])), default=0)
        assert shown == seen[: len(seen) - held]


def test_match_that_is_complete_first_wins() -> None:
    matcher = StopStringMatcher(["abcd", "c"])
    assert run(matcher, ["xabcd"]) == "xab"
    assert matcher.stopped == "c"


def test_longest_of_those_complete_together_wins() -> None:
    matcher = StopStringMatcher(["b", "ab"])
    assert run(matcher, ["xab"]) == "x"
    assert matcher.stopped == "ab"


def test_near_miss_is_given_out_in_the_end() -> None:
    matcher = StopStringMatcher(["STOP"])
    assert [matcher.push("ST"), matcher.push("O"), matcher.push("x")] == ["", "", "STOx"]
    assert matcher.push(" STO") == " "
    assert matcher.flush() == "STO"
    assert matcher.flush() == ""


def test_text_after_the_stop_is_dropped() -> None:
    matcher = StopStringMatcher(["."], include_in_output=True)
    assert matcher.push("One. Two.") == "One."
    assert matcher.push("Three") == matcher.flush() == ""


def test_included_stop_string_needs_no_holding_back() -> None:
    matcher = StopStringMatcher(["STOP"], include_in_output=True)
    assert [matcher.push(part) for part in ("S", "TO", "P!")] == ["S", "TO", "P"]


def test_stop_string_before_min_tokens_does_not_stop() -> None:
    matcher = StopStringMatcher(["end"])
    assert matcher.push("the end ", may_stop=False) == "the end "
    assert matcher.push("of the end") == "of the "
    assert matcher.stopped == "end"


def test_stop_string_that_begins_before_min_tokens_and_ends_after_does_stop() -> None:
    matcher = StopStringMatcher(["end"])
    assert matcher.push("the en", may_stop=False) == "the "
    assert matcher.push("d.") == ""
    assert matcher.stopped == "end"


def test_ignored_match_may_be_the_start_of_a_real_one() -> None:
    matcher = StopStringMatcher(["aba"])
    assert matcher.push("xaba", may_stop=False) == "xab"
    assert matcher.push("ba") == ""
    assert matcher.stopped == "aba"


def test_no_stop_strings_pass_everything() -> None:
    matcher = StopStringMatcher([])
    assert run(matcher, ["a", "b"]) == "ab"
    assert matcher.stopped is None


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop") as raised:
        StopStringMatcher(["a", ""])
    assert raised.value.field == "stop"
