"""Prompts of a length, as ids and as words."""

from __future__ import annotations

import random

import pytest

from chairlift.bench.serve.prompt_form import (
    CALIBRATION_WORDS,
    TextPrompts,
    TokenPrompts,
    calibration_text,
    fit_text_prompts,
)
from chairlift.bench.serve.prompt_words import WORDS


def test_ids_are_exact_and_in_range() -> None:
    form = TokenPrompts(10, 12)
    prompt = form.join([form.draw(random.Random(0), 50), form.draw(random.Random(1), 50)])
    assert len(prompt) == 100 and set(prompt) == {10, 11, 12}


def test_a_shorter_part_is_the_beginning_of_a_longer_one() -> None:
    """So that the last, shorter chunk of a trace's prompt still shares what it can."""
    for form in (TokenPrompts(1, 999), TextPrompts(1.0, 0.0)):
        short, long = (form.draw(random.Random("x"), count) for count in (7, 20))
        assert list(short) == list(long)[:7]


def test_words_hit_the_length_after_calibration() -> None:
    """A tokenizer with three tokens per two words, and a template of 20."""

    def count(text: str) -> int:
        return round(1.5 * len(text.split())) + 20

    form = fit_text_prompts([count(calibration_text(n)) for n in CALIBRATION_WORDS])
    for wanted in (64, 500, 2000):
        prompt = form.join([form.draw(random.Random(0), form.own_tokens(wanted))])
        assert count(prompt) == pytest.approx(wanted, abs=2)


def test_a_template_longer_than_the_prompt_leaves_a_word() -> None:
    form = TextPrompts(1.0, 50.0)
    assert form.join([form.draw(random.Random(0), form.own_tokens(10))]) in WORDS


def test_words_are_many_plain_and_different() -> None:
    assert len(set(WORDS)) == len(WORDS) > 250
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
