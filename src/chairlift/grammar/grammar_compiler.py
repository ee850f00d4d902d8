"""Compiles grammars for one model, within limits, and keeps those that were used last.

Everything that is wrong with a schema, a regular expression or a grammar is found here, before its
request is queued.  Safe to use from several threads; none of them may be one that must not wait.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from chairlift.errors import RequestError
from chairlift.grammar.grammar_text import grammar_text
from chairlift.grammar.token_matcher import CompiledGrammar, GrammarError, TokenMatcher, first_line
from chairlift.grammar.token_trie import build_token_trie
from chairlift.structured_outputs import StructuredOutputsParams
from chairlift.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

MAX_CACHE_BYTES: Final = 64 * 1024 * 1024
_BASE_BYTES: Final = 64 * 1024
_BYTES_PER_CHARACTER: Final = 256
"""Rough upper bounds on what llguidance keeps of a grammar, from measurements."""


class GrammarCompiler:
    """Turns `StructuredOutputsParams` into what the runner follows."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._trie: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._kept_bytes = 0

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Raises `RequestError`, naming the field."""
        field = f"structured_outputs.{params.kind}"
        trie = self._open_trie()
        try:
            text = grammar_text(params)
        except ValueError as error:
            raise _refusal(field, str(error)) from None
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
                return found
        compiled = _compile(text, trie, self._vocab_size, field)
        with self._lock:
            self._keep(text, compiled)
        return compiled

    def _open_trie(self) -> LLTokenizer:
        with self._lock:
            if self._trie is None:
                self._trie = build_token_trie(self._tokenizer)
            return self._trie

    def _keep(self, text: str, compiled: CompiledGrammar) -> None:
        if text in self._kept:
            return
        self._kept[text] = compiled
        self._kept_bytes += _cost(text)
        while self._kept_bytes > MAX_CACHE_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= _cost(oldest)


def _cost(text: str) -> int:
    return _BASE_BYTES + _BYTES_PER_CHARACTER * len(text)


def parser_limits() -> LLParserLimits:
    """How far llguidance may go, in compiling and for each token."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=400_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def _compile(text: str, trie: LLTokenizer, vocab_size: int, field: str) -> CompiledGrammar:
    from llguidance import LLMatcher

    start = LLMatcher(trie, text, log_level=0, limits=parser_limits())
    if start.is_error():
        raise _refusal(field, start.get_error())
    try:
        mask = TokenMatcher(start, vocab_size).compute_mask()  # kept: copies begin with its work
    except GrammarError as error:
        raise _refusal(field, f"nothing can begin with it: {error}") from None
    if not mask.any():
        raise _refusal(field, "no token can begin it")
    return CompiledGrammar(start=start, vocab_size=vocab_size)


def _refusal(field: str, why: str) -> RequestError:
    return RequestError(f"{field} cannot be compiled: {first_line(why)}", field=field)
