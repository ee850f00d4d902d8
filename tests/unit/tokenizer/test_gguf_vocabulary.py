from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.errors import ModelFileError
from chairlift.tokenizer.tokenizer import Tokenizer


def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece BPE in its plainest form: join the best pair, leftmost first, until none."""
    pieces = list(text)
    while True:
        best: tuple[float, int] | None = None
        for index in range(len(pieces) - 1):
            score = scores.get(pieces[index] + pieces[index + 1])
            if score is not None and (best is None or score > best[0]):
                best = (score, index)
        if best is None:
            return pieces
        pieces[best[1] : best[1] + 2] = [pieces[best[1]] + pieces[best[1] + 1]]


def encode_by_score(text: str, metadata: dict[str, Any]) -> list[int]:
    """The ids of `text`, without special tokens, by `merge_by_score` and byte fallback."""
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    types = metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    normal = {token: scores[i] for i, token in enumerate(tokens) if types[i] == 1}
    marked = text.replace(" ", "\u2581")
    result: list[int] = []
    for piece in merge_by_score("\u2581" + marked if marked else "", normal):
        if piece in normal:
            result.append(ids[piece])
        else:
            result.extend(ids[f"<0x{byte:02X}>"] for byte in piece.encode())
    return result


def small_sentencepiece(pieces: list[str], **more: object) -> dict[str, Any]:
    """Metadata with `pieces` in order of falling score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


def test_byte_level_ids_equal_those_of_the_original(
    byte_level_original: tokenizers.Tokenizer,
    byte_level_metadata: dict[str, Any],
    texts: list[str],
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata)
    for text in texts:
        assert tokenizer.encode(text) == byte_level_original.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_ids_equal_plain_merging_by_score(
    sentencepiece_metadata: dict[str, Any], texts: list[str]
) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == encode_by_score(text, sentencepiece_metadata), text
        assert tokenizer.decode(ids) == text


@settings(deadline=None, max_examples=150)
@given(
    pieces=st.lists(st.text("ab\u2581", min_size=2, max_size=4), unique=True, max_size=12),
    text=st.text("ab é", max_size=20),
)
def test_sentencepiece_ids_equal_plain_merging_for_any_pieces(pieces: list[str], text: str) -> None:
    # Equal neighbours that may join to the left or to the right with one score are the stated
    # exception, so each piece has its own score and pieces of one repeated letter stay out.
    pieces = [piece for piece in pieces if len(set(piece)) > 1]
    metadata = small_sentencepiece([*pieces, "a", "b", "\u2581"])
    ids = Tokenizer.from_gguf(metadata).encode(text, add_special_tokens=False)
    assert ids == encode_by_score(text, metadata)


def test_higher_score_wins_over_the_left_pair() -> None:
    metadata = small_sentencepiece(["bc", "ab", "a", "b", "c"], add_space_prefix=False)
    tokenizer = Tokenizer.from_gguf(metadata)
    ids = tokenizer.encode("abc", add_special_tokens=False)
    assert [tokenizer.token_text(i) for i in ids] == ["a", "bc"]


def test_space_prefix_is_a_choice_of_the_file() -> None:
    pieces = ["\u2581a", "a", "\u2581"]
    with_prefix = Tokenizer.from_gguf(small_sentencepiece(pieces))
    without = Tokenizer.from_gguf(small_sentencepiece(pieces, add_space_prefix=False))
    assert with_prefix.encode("a") == [1, 259]
    assert without.encode("a") == [1, 260]
    assert with_prefix.decode([1, 259]) == "a"
    assert without.decode([1, 259]) == " a"


def test_numpy_arrays_and_lists_build_the_same(
    sentencepiece_metadata: dict[str, Any], texts: list[str]
) -> None:
    arrays = dict(sentencepiece_metadata)
    for name, dtype in (("scores", np.float32), ("token_type", np.int32)):
        arrays[f"tokenizer.ggml.{name}"] = np.array(arrays[f"tokenizer.ggml.{name}"], dtype)
    one, other = Tokenizer.from_gguf(sentencepiece_metadata), Tokenizer.from_gguf(arrays)
    assert [one.encode(text) for text in texts] == [other.encode(text) for text in texts]


def test_metadata_is_not_changed(sentencepiece_metadata: dict[str, Any]) -> None:
    metadata = small_sentencepiece(["a", "\u2581\u2581"])
    metadata["tokenizer.ggml.token_type"][-1] = 4
    before = list(metadata["tokenizer.ggml.tokens"])
    Tokenizer.from_gguf(metadata)
    assert metadata["tokenizer.ggml.tokens"] == before


def test_user_defined_spaces_match_spaces_of_the_text() -> None:
    metadata = small_sentencepiece(["a", "\u2581", "\u2581\u2581"], add_space_prefix=False)
    metadata["tokenizer.ggml.token_type"][-1] = 4
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("a  a", add_special_tokens=False) == [259, 261, 259]
    assert tokenizer.decode([259, 261, 259]) == "a  a"
    assert not tokenizer.is_special(261)


def test_empty_and_repeated_pieces_do_no_harm() -> None:
    metadata = small_sentencepiece(["a", "", "a"], add_space_prefix=False)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("a", add_special_tokens=False) == [259]
    assert tokenizer.decode([259, 260, 261]) == "aa"


def test_end_tokens_are_all_that_the_file_and_the_caller_name() -> None:
    metadata = small_sentencepiece(["a", "<|im_end|>", "<|eot_id|>", "<|end|>", "stop"])
    metadata["tokenizer.ggml.token_type"][-4:] = [3, 4, 1, 3]
    metadata["tokenizer.ggml.eot_token_id"] = 1
    tokenizer = Tokenizer.from_gguf(metadata, eos_ids=[263])
    # "<|end|>" is an ordinary piece here: the model may write it.
    assert tokenizer.eos_ids == {2, 1, 260, 261, 263}
    assert tokenizer.eos_ids <= tokenizer.special_ids
    assert not tokenizer.is_special(262)


@pytest.mark.parametrize(
    ("pre", "add_bos"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)]
)
def test_bos_default_follows_the_pre_tokenizer(
    byte_level_metadata: dict[str, Any], pre: str, add_bos: bool
) -> None:
    metadata = byte_level_metadata | {"tokenizer.ggml.pre": pre}
    del metadata["tokenizer.ggml.add_bos_token"]
    assert Tokenizer.from_gguf(metadata).add_bos is add_bos


def test_whole_token_skips_merges_where_the_family_says_so(
    byte_level_metadata: dict[str, Any],
) -> None:
    tokens = [*byte_level_metadata["tokenizer.ggml.tokens"], "xyzzy"]
    types = [*byte_level_metadata["tokenizer.ggml.token_type"], 1]
    metadata = byte_level_metadata | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
    }
    llama = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": "llama-bpe"})
    qwen = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": "qwen2"})
    assert llama.encode("xyzzy", add_special_tokens=False) == [len(tokens) - 1]
    assert len(qwen.encode("xyzzy")) > 1


def test_phi3_special_tokens_swallow_white_space_after_them() -> None:
    metadata = small_sentencepiece(["a", "\u2581a", "\u2581", "<|user|>"])
    metadata["tokenizer.ggml.token_type"][-1] = 3
    plain = Tokenizer.from_gguf(metadata).encode("<|user|>\na", add_special_tokens=False)
    phi = Tokenizer.from_gguf(metadata | {"general.name": "Phi 3 mini Phi-3"})
    assert phi.encode("<|user|>\na", add_special_tokens=False) == [262, 260]
    assert plain == [262, 261, 3 + 10, 259]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.model": None}, "no tokenizer.ggml.model"),
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": []}, "tokens must be a list of strings"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens must be a list of strings"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type has 2 entries"),
        ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["qqq zzz"]}, "'qqq zzz'"),
        ({"tokenizer.ggml.merges": ["nospace"]}, "'nospace'"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"tokenizer.ggml.pre": "martian"}, "'martian'.*llama-bpe.*qwen2.*smollm"),
    ],
)
def test_damaged_or_foreign_vocabulary_is_named(
    byte_level_metadata: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    metadata = {k: v for k, v in (byte_level_metadata | change).items() if v is not None}
    with pytest.raises(ModelFileError, match=message) as raised:
        Tokenizer.from_gguf(metadata)
    assert "\n" not in str(raised.value)


def test_sentencepiece_without_scores_is_refused() -> None:
    metadata = small_sentencepiece(["a"])
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(ModelFileError, match="no tokenizer.ggml.scores"):
        Tokenizer.from_gguf(metadata)
