"""Compiles grammars for one model, within limits, and keeps what was made of the last ones.

Everything that is wrong with a schema, a regular expression or a grammar is found here, before its
request is queued.  Safe to use from several threads; none of them may be one that must not wait.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chairlift.errors import RequestError
from chairlift.grammar.compile_trial import CompileTrial
from chairlift.grammar.grammar_text import grammar_text
from chairlift.grammar.parser_limits import GrammarError, check_grammar
from chairlift.grammar.token_matcher import CompiledGrammar
from chairlift.grammar.token_trie import build_token_trie
from chairlift.structured_outputs import StructuredOutputsParams
from chairlift.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_CACHE_BYTES: Final = 256 * 1024 * 1024
_BASE_BYTES: Final = 256 * 1024
_BYTES_PER_CHARACTER: Final = 512
_BYTES_PER_TOKEN: Final = 9 * 1024
"""Upper bounds on what llguidance keeps of a grammar, and of what was written by it: a bounded
string takes four states of 0.5 kB a character."""


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
        self._kept: OrderedDict[StructuredOutputsParams, _Kept] = OrderedDict()
        """The one that was used last at the end."""

    def has(self, params: StructuredOutputsParams) -> bool:
        """Whether `compile` would return or raise at once."""
        with self._lock:
            return params in self._kept

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Raises `RequestError`, naming the field."""
        kept = self._find(params)
        if kept is None:
            kept = self._compile(params, self._open_trie())
            self._keep(params, kept)
        elif isinstance(kept.found, CompiledGrammar) and kept.found.is_worn:
            kept = _Kept(kept.found.renewed(), kept.base_bytes)
            self._keep(params, kept)
        if isinstance(kept.found, str):
            field = f"structured_outputs.{params.kind}"
            raise RequestError(f"{field} cannot be compiled: {kept.found}", field=field)
        return kept.found

    def _open_trie(self) -> LLTokenizer:
        with self._trie_lock:
            if self._trie is None:
                self._trie = build_token_trie(self._tokenizer)
            return self._trie

    def _compile(self, params: StructuredOutputsParams, trie: LLTokenizer) -> _Kept:
        num_bytes = _BASE_BYTES
        try:
            text = grammar_text(params)
            num_bytes += _BYTES_PER_CHARACTER * len(text)
            self._trial.check(text)
            start = check_grammar(text, trie)
            return _Kept(CompiledGrammar(text, trie, start, self._vocab_size), num_bytes)
        except GrammarError as error:
            return _Kept(str(error), num_bytes)

    def _find(self, params: StructuredOutputsParams) -> _Kept | None:
        with self._lock:
            if params in self._kept:
                self._kept.move_to_end(params)
            return self._kept.get(params)

    def _keep(self, params: StructuredOutputsParams, kept: _Kept) -> None:
        with self._lock:
            self._kept[params] = kept
            self._kept.move_to_end(params)
            num_bytes = sum(one.num_bytes for one in self._kept.values())
            while num_bytes > self._max_cache_bytes:
                _, oldest = self._kept.popitem(last=False)
                num_bytes -= oldest.num_bytes


@dataclass(frozen=True, slots=True)
class _Kept:
    found: CompiledGrammar | str
    """Of a grammar that is wrong, why."""
    base_bytes: int

    @property
    def num_bytes(self) -> int:
        if isinstance(self.found, str):
            return self.base_bytes
        return self.base_bytes + _BYTES_PER_TOKEN * self.found.num_accepted_tokens
