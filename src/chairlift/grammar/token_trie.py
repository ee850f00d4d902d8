"""A model's vocabulary as llguidance wants it: the exact bytes of every token, in one trie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chairlift.errors import RequestError
from chairlift.tokenizer.tokenizer import Tokenizer

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
    return LLTokenizer(vocabulary, n_vocab=tokenizer.vocab_size, eos_token=end_ids)  # type: ignore[arg-type]


class _Vocabulary:
    """What `LLTokenizer` asks for; it copies the tokens and calls the object for canonical ids."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, end_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens: Sequence[bytes] = [
            tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)
        ]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)
