"""Compiles grammars for one model, within limits, and keeps what was made of the last ones.

Everything that is wrong with a schema, a regular expression or a grammar is found here, before its
request is queued.  Safe to use from several threads; none of them may be one that must not wait.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from chairlift.errors import RequestError
from chairlift.grammar.compile_trial import CompileTrial
from chairlift.grammar.grammar_text import grammar_text
from chairlift.grammar.parser_limits import GrammarError, check_grammar, first_line
from chairlift.grammar.token_matcher import CompiledGrammar
from chairlift.grammar.token_trie import build_token_trie
from chairlift.structured_outputs import StructuredOutputsParams
from chairlift.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_CACHE_BYTES: Final = 64 * 1024 * 1024
_BASE_BYTES: Final = 64 * 1024
_BYTES_PER_CHARACTER: Final = 512
"""Rough upper bounds on what llguidance keeps of a grammar."""


class GrammarCompiler:
    """Turns `StructuredOutputsParams` into what the runner follows."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, *, max_cache_bytes: int = MAX_CACHE_BYTES
    ) -> None:
        """`vocab_size` is that of the model's output head."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_cache_bytes = max_cache_bytes
        self._trial = CompileTrial(tokenizer)
        self._trie: LLTokenizer | None = None
        self._trie_lock = threading.Lock()
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CompiledGrammar | str] = OrderedDict()
        """By text, the one that was used last at the end; of those that are wrong, why."""
        self._kept_bytes = 0

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Raises `RequestError`, naming the field."""
        field = f"structured_outputs.{params.kind}"
        trie = self._open_trie()
        try:
            text = grammar_text(params)
        except ValueError as error:
            raise _refusal(field, first_line(str(error))) from None
        found = self._find(text)
        if found is None:
            found = self._compile(text, trie)
            self._keep(text, found)
        if isinstance(found, str):
            raise _refusal(field, found)
        return found

    def _open_trie(self) -> LLTokenizer:
        with self._trie_lock:
            if self._trie is None:
                self._trie = build_token_trie(self._tokenizer)
            return self._trie

    def _compile(self, text: str, trie: LLTokenizer) -> CompiledGrammar | str:
        try:
            self._trial.check(text)
            return CompiledGrammar(start=check_grammar(text, trie), vocab_size=self._vocab_size)
        except GrammarError as error:
            return str(error)

    def _find(self, text: str) -> CompiledGrammar | str | None:
        with self._lock:
            if text in self._kept:
                self._kept.move_to_end(text)
            return self._kept.get(text)

    def _keep(self, text: str, found: CompiledGrammar | str) -> None:
        with self._lock:
            if text in self._kept:
                return
            self._kept[text] = found
            self._kept_bytes += _cost(text)
            while self._kept_bytes > self._max_cache_bytes:
                oldest, _ = self._kept.popitem(last=False)
                self._kept_bytes -= _cost(oldest)


def _cost(text: str) -> int:
    return _BASE_BYTES + _BYTES_PER_CHARACTER * len(text)


def _refusal(field: str, why: str) -> RequestError:
    return RequestError(f"{field} cannot be compiled: {why}", field=field)
