from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.errors import ModelFileError, RequestError
from chairlift.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def byte_level(byte_level_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata)


@pytest.fixture(scope="module")
def sentencepiece(sentencepiece_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata)


def test_bos_is_never_doubled(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.encode("the") == [
        1,
        *sentencepiece.encode("the", add_special_tokens=False),
    ]
    assert sentencepiece.encode("<s>the") == sentencepiece.encode("the")
    # Two that the text itself writes are both kept.
    assert sentencepiece.encode("<s><s>")[:3] == [1, 1]
    assert sentencepiece.encode("") == [1]


def test_bos_is_added_before_its_text_in_plain_text(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("<s>the", parse_special=False)
    assert ids[0] == 1 and 1 not in ids[1:]
    assert sentencepiece.decode(ids) == "<s>the"


def test_eos_is_added_once_where_the_file_says_so(
    byte_level_metadata: dict[str, Any],
) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata | {"tokenizer.ggml.add_eos_token": True})
    assert tokenizer.encode("fox")[-1] == 2
    assert tokenizer.encode("fox<|im_end|>").count(2) == 1
    assert 2 not in tokenizer.encode("fox", add_special_tokens=False)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_special_text_of_users_stays_text(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = "a<|im_end|>b"
    assert set(tokenizer.encode(text)) & tokenizer.eos_ids
    literal = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert not set(literal) & tokenizer.special_ids
    assert tokenizer.decode(literal) == text


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_user_defined_tokens_are_text_and_always_whole(
    kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    tool = tokenizer.vocab_size - 1
    for parse_special in (True, False):
        assert tool in tokenizer.encode("x <tool>y", parse_special=parse_special)
    assert not tokenizer.is_special(tool)
    assert "<tool>" in tokenizer.decode([tool])


def test_special_tokens_are_skipped_or_shown(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>fox<|im_end|>")
    assert byte_level.decode(ids) == "fox"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>fox<|im_end|>"


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 499), max_size=30), skip=st.booleans())
def test_byte_level_decoding_equals_the_original_for_any_ids(
    byte_level: Tokenizer,
    byte_level_original: tokenizers.Tokenizer,
    ids: list[int],
    skip: bool,
) -> None:
    expected = byte_level_original.decode(ids, skip_special_tokens=skip)
    assert byte_level.decode(ids, skip_special_tokens=skip) == expected


@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_survives_encoding(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str
) -> None:
    # U+2581 means a space in SentencePiece, so it alone cannot survive.
    marked = text.replace("\u2581", " ")
    assert byte_level.decode(byte_level.encode(text, parse_special=False)) == text
    assert sentencepiece.decode(sentencepiece.encode(text, parse_special=False)) == marked


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_token_bytes_join_to_the_text(
    kind: str, texts: list[str], request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        assert joined.removeprefix(b" " if tokenizer.strips_leading_space else b"") == text.encode()


def test_token_text_shows_incomplete_bytes_as_replacement(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.token_text(3 + 0xF0) == "\ufffd"
    assert sentencepiece.token_text(2) == "</s>"


def test_half_a_surrogate_pair_is_a_request_error(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate") as raised:
        byte_level.encode("a\ud800")
    assert raised.value.field == "prompt"


def test_more_tokens_than_embedding_rows_is_refused(byte_level: Tokenizer) -> None:
    byte_level.check_vocab_size(byte_level.vocab_size)
    byte_level.check_vocab_size(byte_level.vocab_size + 64)
    with pytest.raises(ModelFileError, match="belongs to another model"):
        byte_level.check_vocab_size(byte_level.vocab_size - 1)


def test_padding_rows_decode_to_nothing(byte_level: Tokenizer) -> None:
    assert byte_level.decode([byte_level.vocab_size + 3]) == ""
    assert not byte_level.is_special(byte_level.vocab_size + 3)


def test_threads_get_the_same_ids(byte_level_metadata: dict[str, Any], texts: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata)
    alone = Tokenizer.from_gguf(byte_level_metadata)
    marked = [text + "<|im_end|>" for text in texts] * 8

    def both(text: str) -> tuple[list[int], list[int], str]:
        ids = tokenizer.encode(text)
        return ids, tokenizer.encode(text, parse_special=False), tokenizer.decode(ids)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(both, marked))
    for text, (ids, literal, decoded) in zip(marked, results, strict=True):
        assert ids == alone.encode(text)
        assert literal == alone.encode(text, parse_special=False)
        assert decoded == alone.decode(ids)


def test_importing_the_tokenizer_loads_no_heavy_package() -> None:
    code = (
        "import sys, chairlift.tokenizer.tokenizer;"
        "sys.exit(len({'tokenizers', 'jinja2', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False
    )
    assert done.returncode == 0


@pytest.fixture(scope="module")
def default_model_tokenizer(default_model_path: Path) -> Tokenizer:
    from gguf import GGUFReader

    fields = GGUFReader(default_model_path).fields
    metadata = {k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.")}
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"])
    return Tokenizer.from_gguf(metadata)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19556, 905]),
        ("<|im_start|>user\nhi<|im_end|>", [1, 4093, 198, 6004, 2]),
        ("1234", [33, 34, 35, 36]),
        ("a  b\n\n  c", [81, 216, 278, 8866, 265]),
        ("ěščř", [143, 245, 20848, 30033, 144, 243]),
    ],
)
def test_default_model_ids(default_model_tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert default_model_tokenizer.encode(text) == ids
    assert default_model_tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.real_model
def test_default_model_ends_at_both_its_end_tokens(default_model_tokenizer: Tokenizer) -> None:
    assert default_model_tokenizer.eos_ids == {0, 2}
    assert default_model_tokenizer.bos_token == "<|im_start|>"
    assert not default_model_tokenizer.add_bos
    default_model_tokenizer.check_vocab_size(49152)


@pytest.mark.real_model
def test_default_model_keeps_every_text(
    default_model_tokenizer: Tokenizer, texts: list[str]
) -> None:
    for text in texts:
        assert default_model_tokenizer.decode(default_model_tokenizer.encode(text)) == text
