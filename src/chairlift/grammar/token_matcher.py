"""A compiled grammar, and where one text stands in it: which tokens may come next.

llguidance builds the states of its lexer as texts need them, and keeps them for all that follow the
same grammar.  So a grammar gets faster with use, and larger: it is renewed after some time, and a
text that meets the bound on states goes on by itself, as if it had been alone.

Shape legend: W words of 32 tokens each, enough for the model's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from chairlift.grammar.parser_limits import GrammarError, check_grammar, raise_error

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MaskArray = NDArray[np.uint32]
"""Token i may come next if bit i % 32 of word i // 32 is set."""

MAX_SHARED_TOKENS: Final = 4096
"""Of all texts that follow a grammar before it is renewed."""


@dataclass(slots=True, eq=False)
class CompiledGrammar:
    """What a request brings along."""

    text: str
    trie: LLTokenizer
    start: LLMatcher
    """At the beginning of a text.  It is copied and never moves."""
    vocab_size: int
    """Of the model's output head, which may have more rows than there are tokens."""
    num_accepted_tokens: int = 0
    """By all matchers that share states."""

    @property
    def is_worn(self) -> bool:
        """New requests should have a fresh one."""
        return self.num_accepted_tokens >= MAX_SHARED_TOKENS

    def renewed(self) -> CompiledGrammar:
        """The same without the states of past texts.  Takes as long as compiling did."""
        start = check_grammar(self.text, self.trie)
        return CompiledGrammar(self.text, self.trie, start, self.vocab_size)

    def new_matcher(self) -> TokenMatcher:
        """At the beginning of a text.  One thread at a time."""
        return TokenMatcher(self)


class TokenMatcher:
    """Follows one text, token by token.  Not thread-safe, but any thread may have its turn."""

    __slots__ = ("_accepted", "_grammar", "_is_alone", "_mask", "_matcher", "_num_shown")

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._matcher = grammar.start.deep_copy()
        self._is_alone = False
        """It shares no states with others."""
        self._mask: MaskArray | None = None
        self._accepted: list[int] = []
        self._num_shown = 0
        """Accepted tokens that the matcher has seen."""

    def compute_mask(self) -> MaskArray:
        """[W] what may come next, end tokens among it where the text is complete.

        Computed once per position, without the interpreter's lock, and not to be written to.
        Raises `GrammarError` if the grammar is too complex here, or a token was not allowed.
        """
        if self._mask is None:
            try:
                self._mask = self._advance()
            except GrammarError:
                if self._is_alone:
                    raise
                self._go_alone()
                self._mask = self._advance()
        return self._mask

    def accept(self, token_id: int) -> None:
        """Take note of the token that comes next; the next mask is its position's."""
        self._mask = None
        self._accepted.append(token_id)
        self._grammar.num_accepted_tokens += 1

    def _advance(self) -> MaskArray:
        while self._num_shown < len(self._accepted):
            self._show_next()
        bits = self._matcher.compute_bitmask()
        raise_error(self._matcher)
        num_words = -(-self._grammar.vocab_size // 32)
        # Rows of the output head without a token stay forbidden.
        mask = np.zeros(num_words, dtype=np.uint32)
        words = np.frombuffer(bits, dtype=np.uint32)[:num_words]
        mask[: len(words)] = words
        return mask

    def _show_next(self) -> None:
        self._matcher.consume_token(self._accepted[self._num_shown])
        raise_error(self._matcher)
        self._num_shown += 1

    def _go_alone(self) -> None:
        """What went wrong may be the others' doing: begin again without their states.

        Masks take states as well, so they are computed again: a text gets as far as it would have
        got with nobody around.
        """
        self._is_alone = True
        self._grammar.num_accepted_tokens = MAX_SHARED_TOKENS
        self._matcher, self._num_shown = self._grammar.renewed().start, 0
        while self._num_shown < len(self._accepted):
            self._matcher.compute_bitmask()
            raise_error(self._matcher)
            self._show_next()
