from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from chairlift.tokenizer.tokenizer import Tokenizer

HARD_TEXT = "🤖🏽 👩‍👩‍👧 ภาษาไทย สวัสดี Příliš žluťoučký kůň 今日は"


@pytest.fixture(scope="module")
def byte_level(byte_level_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata)


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata)


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def stream(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.flush()]


def test_g1_streamed_text_equals_whole_text_for_emoji_thai_czech(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(HARD_TEXT)
    deltas = stream(IncrementalDetokenizer(tokenizer), ids)
    assert "".join(deltas) == tokenizer.decode(ids) == HARD_TEXT
    # The text needs characters of several tokens, and no delta shows a part of one.
    assert any(not delta for delta in deltas[1:-1])
    assert not any("\ufffd" in delta for delta in deltas)


token_lists = st.lists(st.integers(0, 700), max_size=40)


@settings(deadline=None, max_examples=200)
@given(ids=token_lists, cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
def test_joined_deltas_equal_decode_for_any_ids(
    byte_level: Tokenizer,
    sentencepiece: Tokenizer,
    ids: list[int],
    cuts: list[int],
    skip: bool,
) -> None:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    for tokenizer in (byte_level, sentencepiece):
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
        deltas = [detokenizer.push(ids[start:end]) for start, end in pairwise(bounds)]
        deltas.append(detokenizer.flush())
        assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.one_of(st.integers(3, 258), st.sampled_from([1, 2, 259, 270])), max_size=24))
def test_runs_of_single_bytes_decode_as_the_joined_bytes(
    sentencepiece: Tokenizer, ids: list[int]
) -> None:
    visible = [token_id for token_id in ids if not sentencepiece.is_special(token_id)]
    joined = b"".join(map(sentencepiece.token_bytes, visible)).removeprefix(b" ")
    assert "".join(stream(IncrementalDetokenizer(sentencepiece), ids)) == joined.decode(
        "utf-8", "replace"
    )


def test_character_appears_with_its_last_byte(sentencepiece: Tokenizer) -> None:
    robot = [3 + byte for byte in "🤖".encode()]
    detokenizer = IncrementalDetokenizer(sentencepiece)
    assert [detokenizer.push([token_id]) for token_id in robot] == ["", "", "", "🤖"]
    assert detokenizer.flush() == ""


def test_cut_character_becomes_one_replacement_at_the_end(sentencepiece: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(sentencepiece)
    assert detokenizer.push([3 + byte for byte in "🤖".encode()[:3]]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_skipped_token_between_the_bytes_of_a_character_does_no_harm(
    sentencepiece: Tokenizer,
) -> None:
    first, *rest = (3 + byte for byte in "é".encode())
    assert "".join(stream(IncrementalDetokenizer(sentencepiece), [first, 2, *rest])) == "é"


def test_first_space_goes_at_the_start_of_a_text_and_stays_after_a_prompt(
    sentencepiece: Tokenizer,
) -> None:
    ids = sentencepiece.encode("the other fox", add_special_tokens=False)
    prompt = sentencepiece.encode("quick brown")

    def text(prompt_token_ids: list[int]) -> str:
        detokenizer = IncrementalDetokenizer(sentencepiece, prompt_token_ids=prompt_token_ids)
        return "".join(stream(detokenizer, ids))

    assert text([]) == "the other fox"
    assert text([1]) == "the other fox"
    assert text(prompt) == " the other fox"
    # So the two texts joined are the text of the whole.
    assert sentencepiece.decode(prompt) + text(prompt) == sentencepiece.decode(prompt + ids)


def test_only_one_space_goes_and_only_once(sentencepiece: Tokenizer) -> None:
    space = 3 + 0x20
    detokenizer = IncrementalDetokenizer(sentencepiece)
    assert [detokenizer.push([token_id]) for token_id in (1, space, space, space)] == [
        "",
        "",
        " ",
        " ",
    ]


def test_shown_special_token_is_the_start_of_the_text(sentencepiece: Tokenizer) -> None:
    ids = [1, *sentencepiece.encode("the", add_special_tokens=False)]
    shown = IncrementalDetokenizer(sentencepiece, skip_special_tokens=False)
    assert "".join(stream(shown, ids)) == "<s> the"


def test_each_token_is_spelled_once_however_long_the_text() -> None:
    class Counting:
        strips_leading_space = True
        num_calls = 0

        def token_bytes(self, token_id: int) -> bytes:
            self.num_calls += 1
            return b"x"

        def is_special(self, token_id: int) -> bool:
            return False

    source = Counting()
    stream(IncrementalDetokenizer(source, prompt_token_ids=range(10**6)), [0] * 1000)
    assert source.num_calls == 1001


def test_kept_special_tokens_are_text_and_others_are_not(sentencepiece: Tokenizer) -> None:
    bos, eos = sorted(sentencepiece.special_ids)[:2]
    ids = [*sentencepiece.encode("the", add_special_tokens=False), bos, eos]
    kept = IncrementalDetokenizer(sentencepiece, kept_special_token_ids=[eos])
    text = "".join(stream(kept, ids))
    assert text == "the" + sentencepiece.token_bytes(eos).decode()
    assert sentencepiece.special_id(sentencepiece.token_bytes(eos).decode()) == eos
    assert sentencepiece.special_id("the") is None
