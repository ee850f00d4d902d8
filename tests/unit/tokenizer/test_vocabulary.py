from __future__ import annotations

from tokenizers.pre_tokenizers import ByteLevel

from chairlift.tokenizer.vocabulary import ByteScheme, Vocabulary, byte_alphabet


def make(texts: list[str], scheme: ByteScheme, special: set[int] | None = None) -> Vocabulary:
    special_ids = frozenset(special or ())
    return Vocabulary(
        texts,
        scheme=scheme,
        added_ids=special_ids,
        special_ids=special_ids,
        strip_leading_space=False,
    )


def test_byte_alphabet_is_the_one_of_byte_level_bpe() -> None:
    alphabet = byte_alphabet()
    assert set(alphabet) == set(ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"]) == (0x20, 0x0A, 0x41)


def test_byte_level_pieces_give_their_bytes() -> None:
    vocabulary = make(["Ġhi", "ðŁ", "<|é|>", "日"], ByteScheme.BYTE_LEVEL, {2})
    assert vocabulary.token_bytes(0) == b" hi"
    assert vocabulary.token_bytes(1) == b"\xf0\x9f"
    # A special token stands for its text, though each letter is in the byte alphabet.
    assert vocabulary.token_bytes(2) == "<|é|>".encode()
    assert vocabulary.token_bytes(3) == "日".encode()


def test_sentencepiece_pieces_give_their_bytes() -> None:
    vocabulary = make(["\u2581hi", "<0x0A>", "<0xF0>", "<s>"], ByteScheme.SENTENCEPIECE, {3})
    assert [vocabulary.token_bytes(i) for i in range(4)] == [b" hi", b"\n", b"\xf0", b"<s>"]


def test_padding_ids_stand_for_nothing() -> None:
    vocabulary = make(["a"], ByteScheme.BYTE_LEVEL)
    assert vocabulary.token_bytes(1) == vocabulary.token_bytes(-1) == b""
    assert vocabulary.piece(7) == ""
