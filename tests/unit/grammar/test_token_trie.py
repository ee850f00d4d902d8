"""Texts that a grammar forces are cut as the model would, and stand for their bytes exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from chairlift.errors import RequestError
from chairlift.grammar.token_trie import build_token_trie
from chairlift.tokenizer.tokenizer import Tokenizer

TOKENS = [b"</s>", b" ", b"a", b"b", b" a", b"ab", b"\x02", b"X", *(bytes([i]) for i in range(128))]


class Spaced:
    """As SentencePiece has it: a space goes in front of every text."""

    vocab_size = len(TOKENS)
    bos_id = None
    eos_ids = frozenset({0})
    special_ids = frozenset({0})

    def token_bytes(self, token_id: int) -> bytes:
        return TOKENS[token_id]

    def encode(self, text: str, **options: Any) -> list[int]:
        data, ids = b" " + text.replace("X", "Y").encode(), []
        while data:
            best = max((t for t in TOKENS[1:] if data.startswith(t)), key=len)
            ids.append(TOKENS.index(best))
            data = data[len(best) :]
        return ids


def test_no_space_comes_before_what_is_forced() -> None:
    trie = build_token_trie(cast(Tokenizer, Spaced()))
    assert trie.tokenize_str("abb") == [TOKENS.index(b"ab"), TOKENS.index(b"b")]
    assert trie.tokenize_str(" a") == [TOKENS.index(b" a")]
    assert trie.tokenize_str("aX") == [TOKENS.index(b"a"), TOKENS.index(b"X")], "not as it encodes"


def test_bytes_and_special_tokens_are_the_models(tiny_folder: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.from_huggingface(tiny_folder("llama3"))
    trie = build_token_trie(tokenizer)
    assert trie.vocab_size == tokenizer.vocab_size
    assert set(trie.eos_tokens) == tokenizer.eos_ids
    text = "größer <|x|> \n"
    assert trie.tokenize_str(text) == tokenizer.encode(text, add_special_tokens=False)
    special = [i for i in range(tokenizer.vocab_size) if trie.is_special_token(i)]
    assert special == sorted(tokenizer.special_ids)


def test_a_model_without_an_end_has_no_structured_output(
    tiny_folder: Callable[[str], Path],
) -> None:
    tokenizer = Tokenizer.from_huggingface(tiny_folder("llama3"))
    tokenizer.eos_ids = frozenset()
    with pytest.raises(RequestError, match="end token"):
        build_token_trie(tokenizer)
