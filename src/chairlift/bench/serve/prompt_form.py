"""Random prompts of a length: token ids, exactly, or words, about."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from chairlift.bench.serve.prompt_words import WORDS

Prompt = str | list[int]
Part = Sequence[int] | Sequence[str]
"""A piece of a prompt, drawn in one go: parts with the same random numbers are the same."""


class PromptForm(Protocol):
    """Draws parts of prompts and joins them."""

    name: str

    def draw(self, rng: random.Random, num_tokens: int) -> Part:
        """A part of this length; not empty unless `num_tokens` is 0."""
        ...

    def join(self, parts: Sequence[Part]) -> Prompt: ...

    def own_tokens(self, num_tokens: int) -> int:
        """What is left to draw for a prompt of a length, when the server adds tokens itself."""
        ...


class TokenPrompts:
    """Lists of token ids."""

    name = "ids"

    def __init__(self, low: int, high: int) -> None:
        self._ids = range(low, high + 1)

    def draw(self, rng: random.Random, num_tokens: int) -> list[int]:
        return rng.choices(self._ids, k=num_tokens)

    def join(self, parts: Sequence[Part]) -> list[int]:
        return [int(token_id) for part in parts for token_id in part]

    def own_tokens(self, num_tokens: int) -> int:
        return num_tokens


class TextPrompts:
    """Common English words."""

    name = "text"

    def __init__(self, tokens_per_word: float, num_added_tokens: float) -> None:
        """`num_added_tokens` are those of a chat template."""
        self._tokens_per_word = tokens_per_word
        self._num_added_tokens = num_added_tokens

    def draw(self, rng: random.Random, num_tokens: int) -> list[str]:
        if num_tokens == 0:
            return []
        return rng.choices(WORDS, k=max(1, round(num_tokens / self._tokens_per_word)))

    def join(self, parts: Sequence[Part]) -> str:
        return " ".join(str(word) for part in parts for word in part)

    def own_tokens(self, num_tokens: int) -> int:
        return max(1, round(num_tokens - self._num_added_tokens))


CALIBRATION_WORDS = (64, 256)


def calibration_text(num_words: int) -> str:
    """Words to count the tokens of."""
    return " ".join(random.Random("calibration").choices(WORDS, k=num_words))


def fit_text_prompts(num_tokens: Sequence[int]) -> TextPrompts:
    """From the tokens of the two calibration texts: a line through them."""
    (few, many), (low, high) = CALIBRATION_WORDS, num_tokens
    tokens_per_word = max(0.1, (high - low) / (many - few))
    return TextPrompts(tokens_per_word, max(0.0, low - tokens_per_word * few))
