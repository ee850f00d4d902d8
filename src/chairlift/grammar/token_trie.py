"""A model's vocabulary as llguidance wants it: the exact bytes of every token, in one trie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chairlift.errors import RequestError
from chairlift.tokenizer.tokenizer import Tokenizer

_FENCE = "\x02"
_FENCE_TOKENS = 4
"""A character that no token joins with others: what comes after it is cut as if nothing had."""

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def build_token_trie(tokenizer: Tokenizer) -> LLTokenizer:
    """Takes about 0.1 s for 50,000 tokens, and may run in any thread.

    Raises `RequestError` if the model has no end token: nothing could end where a text is complete.
    """
    try:
        from llguidance import LLTokenizer
    except ImportError:
        raise RequestError(
            "structured_outputs needs the package llguidance: pip install llguidance",
            field="structured_outputs",
        ) from None
    end_ids = sorted(i for i in tokenizer.eos_ids if i < tokenizer.vocab_size)
    if not end_ids:
        raise RequestError(
            "structured_outputs needs a model with an end token, and this one has none",
            field="structured_outputs",
        )
    vocabulary = _Vocabulary(tokenizer, end_ids[0])
    trie = LLTokenizer(vocabulary, n_vocab=tokenizer.vocab_size, eos_token=end_ids)  # type: ignore[arg-type]
    vocabulary.trie = trie
    return trie


class _Vocabulary:
    """What `LLTokenizer` asks for; it copies the tokens and calls the object for canonical ids."""

    is_tokenizer_wrapper = True
    trie: LLTokenizer | None = None

    def __init__(self, tokenizer: Tokenizer, end_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens: Sequence[bytes] = [
            tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)
        ]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text in the middle of another: nothing is put in front of it."""
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        wanted = text.encode("utf-8")
        ids = self._encode(text)
        if self._bytes_of(ids) == wanted:
            return ids
        ids = self._encode(_FENCE + text)
        for count in range(1, min(len(ids), _FENCE_TOKENS + 1)):
            if self._bytes_of(ids[count:]) == wanted:
                return ids[count:]
        assert self.trie is not None
        return self.trie.greedy_tokenize(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)

    def _bytes_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, ids))
