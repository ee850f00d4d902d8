"""A compiled grammar, and where one text stands in it: which tokens may come next.

Shape legend: W words of 32 tokens each, enough for the model's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chairlift.grammar.parser_limits import raise_error

if TYPE_CHECKING:
    from llguidance import LLMatcher

MaskArray = NDArray[np.uint32]
"""Token i may come next if bit i % 32 of word i // 32 is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGrammar:
    """What a request brings along; nothing but `new_matcher` touches it once it is made."""

    start: LLMatcher
    """At the beginning of a text.  It is copied and never moves."""
    vocab_size: int
    """Of the model's output head, which may have more rows than there are tokens."""

    def new_matcher(self) -> TokenMatcher:
        """At the beginning of a text.  One thread at a time."""
        return TokenMatcher(self.start.deep_copy(), self.vocab_size)


class TokenMatcher:
    """Follows one text, token by token.  Not thread-safe, but any thread may have its turn."""

    __slots__ = ("_ahead", "_mask", "_matcher", "_num_words")

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_words = -(-vocab_size // 32)
        self._mask: MaskArray | None = None
        self._ahead: list[int] = []
        """Accepted and not shown to the matcher yet."""

    def compute_mask(self) -> MaskArray:
        """[W] what may come next, end tokens among it where the text is complete.

        Computed once per position, without the interpreter's lock, and not to be written to.
        Raises `GrammarError` if the grammar is too complex here, or a token was not allowed.
        """
        while self._ahead:
            self._matcher.consume_token(self._ahead.pop(0))
            raise_error(self._matcher)
        if self._mask is None:
            bits = self._matcher.compute_bitmask()
            raise_error(self._matcher)
            mask = np.zeros(self._num_words, dtype=np.uint32)
            # Rows of the output head without a token stay forbidden.
            words = np.frombuffer(bits, dtype=np.uint32)[: self._num_words]
            mask[: len(words)] = words
            self._mask = mask
        return self._mask

    def accept(self, token_id: int) -> None:
        """Take note of the token that comes next; the next mask is its position's."""
        self._mask = None
        self._ahead.append(token_id)
