"""Two small vocabularies, trained here, one of each kind that GGUF files carry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 1234 o'clock, they're late!",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.  Dvě mezery,   tři mezery.",
    "ภาษาไทย สวัสดีครับ และ ขอบคุณ",
    "def main(argv):\n    return {'a': [1, 2, 3]}\n\n\tprint('tab')\r\n",
    "今日は世界 — こんにちは。 مرحبا بالعالم",
    "the other one, the other brown fox; theme and then there, now and then again",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "  leading and trailing  ",
    "\n\n\n\t \r\n x",
    "👩‍👩‍👧‍👦 family 🤖🏽 flags 🇨🇿",
    "0 12 345 6789 ½ Ⅷ ٣",
    "a" * 40 + " " * 17 + "the" * 9,
    "e\u0301 combining, nul \x00, BOM \ufeff, private \ue000, last \U0010ffff",
    "for i in range(10):\n        x += i  # naïve\n",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def byte_level_original() -> Tokenizer:
    """Byte-level BPE as its own library trains and saves it, cut as SmolLM cuts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


@pytest.fixture(scope="session")
def byte_level_metadata(byte_level_original: Tokenizer) -> dict[str, Any]:
    """The same vocabulary as GGUF metadata."""
    saved = json.loads(byte_level_original.to_str())["model"]
    tokens = sorted(saved["vocab"], key=saved["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*tokens, "<tool>"],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3) + [4],
        "tokenizer.ggml.merges": [
            merge if isinstance(merge, str) else " ".join(merge) for merge in saved["merges"]
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, Any]:
    """A SentencePiece BPE vocabulary with byte fallback, as GGUF metadata."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    # Words end before a space mark; runs of spaces may become pieces of their own.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581*[^\u2581]+"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=80, show_progress=False)
    tokenizer.train_from_iterator([*CORPUS, "\u2581\u2581\u2581\u2581x " * 20], trainer)
    vocab = tokenizer.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    pieces = [piece for piece in pieces if "\n" not in piece]
    num_reserved = 3 + 256
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *pieces,
            "<|im_end|>",
            "<tool>",
        ],
        "tokenizer.ggml.scores": [0.0] * num_reserved
        + [-float(rank) for rank in range(len(pieces))]
        + [0.0, 0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [3, 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
