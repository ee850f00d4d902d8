from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from chairlift.errors import ModelFileError
from chairlift.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def byte_level_folder(tmp_path: Path, byte_level_original: tokenizers.Tokenizer) -> Path:
    byte_level_original.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def llama_original() -> tokenizers.Tokenizer:
    """SentencePiece BPE as the converters of the other format write it."""
    pieces = ["\u2581", "a", "b", "é", "\u2581a", "ab", "\u2581ab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[("\u2581", "a"), ("a", "b"), ("\u2581", "ab"), ("\u2581a", "b")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens(
        [AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")]
    )
    return backend


def save(folder: Path, backend: tokenizers.Tokenizer, **config: object) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_byte_level_folder_equals_the_same_vocabulary_in_gguf(
    byte_level_folder: Path, byte_level_metadata: dict[str, Any], texts: list[str]
) -> None:
    folder = Tokenizer.from_huggingface(byte_level_folder)
    gguf = Tokenizer.from_gguf(byte_level_metadata)
    for text in [*texts, "<|im_start|>user\nhi<|im_end|><tool>"]:
        ids = folder.encode(text)
        assert ids == gguf.encode(text)
        assert folder.decode(ids) == gguf.decode(ids)
    assert folder.eos_ids == gguf.eos_ids == {0, 2}
    assert (folder.bos_id, folder.eos_id, folder.special_ids) == (1, 2, gguf.special_ids)
    assert folder.vocab_size == gguf.vocab_size


def test_llama_folder_encodes_and_decodes_as_the_original(
    tmp_path: Path, llama_original: tokenizers.Tokenizer
) -> None:
    save(tmp_path, llama_original, bos_token="<s>", eos_token="</s>")
    tokenizer = Tokenizer.from_huggingface(tmp_path)
    for text in ["ab a", "  ab", "é\n🤖", "", "a</s>b"]:
        ids = llama_original.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == llama_original.decode(ids)
    assert tokenizer.add_bos and not tokenizer.add_eos


def test_config_flag_overrides_the_post_processor(
    tmp_path: Path, llama_original: tokenizers.Tokenizer
) -> None:
    save(tmp_path, llama_original, bos_token="<s>", add_bos_token=False)
    assert Tokenizer.from_huggingface(tmp_path).encode("a") == [263]


def test_saved_truncation_and_padding_do_not_apply(
    tmp_path: Path, llama_original: tokenizers.Tokenizer
) -> None:
    llama_original.enable_truncation(4)
    llama_original.enable_padding(length=4)
    save(tmp_path, llama_original, bos_token="<s>")
    tokenizer = Tokenizer.from_huggingface(tmp_path)
    assert len(tokenizer.encode("a" * 50)) == 51
    assert tokenizer.encode("") == [1]


def test_end_tokens_of_the_generation_config_are_added(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.from_huggingface(byte_level_folder, eos_ids=[1])
    assert tokenizer.eos_ids == {0, 1, 2}


def test_special_tokens_map_is_the_fallback(byte_level_folder: Path) -> None:
    (byte_level_folder / "tokenizer_config.json").unlink()
    (byte_level_folder / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    assert Tokenizer.from_huggingface(byte_level_folder).eos_id == 0


def test_chat_template_is_found_in_each_of_its_places(byte_level_folder: Path) -> None:
    def template(**config: object) -> str | None:
        (byte_level_folder / "tokenizer_config.json").write_text(json.dumps(config))
        return Tokenizer.from_huggingface(byte_level_folder).chat_template

    assert template() is None
    assert template(chat_template="plain") == "plain"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert template(chat_template=named) == "d"
    (byte_level_folder / "chat_template.jinja").write_text("file")
    assert template(chat_template="plain") == "file"


def test_missing_or_broken_files_are_named(byte_level_folder: Path, tmp_path: Path) -> None:
    (byte_level_folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match="tokenizer_config.json is not valid JSON"):
        Tokenizer.from_huggingface(byte_level_folder)
    (byte_level_folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match="tokenizer.json cannot be read"):
        Tokenizer.from_huggingface(byte_level_folder)
    with pytest.raises(ModelFileError, match="tokenizer.json is missing"):
        Tokenizer.from_huggingface(tmp_path / "nowhere")


def test_word_piece_tokenizer_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    save(tmp_path, backend)
    with pytest.raises(ModelFileError, match="WordPiece.*not supported"):
        Tokenizer.from_huggingface(tmp_path)
