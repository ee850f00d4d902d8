"""GGUF files as written by the `gguf` package, whole and split."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from chairlift.errors import ModelFileError
from chairlift.weights.dequantize import dequantize
from chairlift.weights.ggml_type import GGMLType
from chairlift.weights.gguf import GGUFFile

WriteGGUF = Callable[..., Path]


def test_metadata_comes_back_as_python_values(write_gguf: WriteGGUF) -> None:
    with GGUFFile.open(write_gguf()) as file:
        metadata = file.metadata
        assert file.version == 3
        assert metadata["general.architecture"] == "llama"
        assert metadata["general.name"] == "naïve ☃"
        assert metadata["llama.block_count"] == 2
        assert metadata["llama.rope.freq_base"] == 10000.5
        assert metadata["tokenizer.ggml.add_bos_token"] is True
        assert metadata["test.int8"] == -5
        assert metadata["test.uint64"] == 2**63 + 1
        assert metadata["test.float64"] == -0.1
        assert metadata["tokenizer.ggml.tokens"] == ["a", "", "Ġthe", "日本"]
        np.testing.assert_array_equal(metadata["tokenizer.ggml.token_type"], [1, 2, -3, 4])
        np.testing.assert_array_equal(metadata["test.floats"], [0.5, 1.5])
        bools = metadata["test.bools"]
        assert isinstance(bools, np.ndarray)
        assert bools.tolist() == [True, False, True]
        assert "test.absent" not in metadata
        assert metadata.get("test.absent") is None


@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_tensors_agree_with_the_reference_reader(write_gguf: WriteGGUF, alignment: int) -> None:
    path = write_gguf(alignment=alignment)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == list(theirs)
        for name, tensor in file.tensors.items():
            assert tensor.type.value == theirs[name].tensor_type.value
            assert list(tensor.shape) == theirs[name].shape.tolist()[::-1]
            np.testing.assert_array_equal(tensor.raw, theirs[name].data.reshape(-1).view(np.uint8))


def test_strings_that_are_not_utf8_survive(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes().replace("日本".encode(), b"\xff\xfe\x80abc"))
    with GGUFFile.open(path) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        assert tokens[3].encode("utf-8", "surrogateescape") == b"\xff\xfe\x80abc"


def test_version_2_is_read(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    content = bytearray(path.read_bytes())
    content[4] = 2
    path.write_bytes(content)
    with GGUFFile.open(path) as file:
        assert file.version == 2
        assert len(file.tensors) == 5


def test_views_outlive_close_and_later_reads_are_refused(write_gguf: WriteGGUF) -> None:
    file = GGUFFile.open(write_gguf())
    tensor = file.tensors["blk.0.attn_norm.weight"]
    raw = tensor.raw
    before = raw.copy()
    file.close()
    np.testing.assert_array_equal(raw, before)
    del raw
    file.close()
    with pytest.raises(ModelFileError, match=r"after close\(\)"):
        file.metadata["general.name"]
    with pytest.raises(ModelFileError, match=r"after close\(\)"):
        _ = tensor.raw


def test_views_are_read_only(write_gguf: WriteGGUF) -> None:
    with (
        GGUFFile.open(write_gguf()) as file,
        pytest.raises(ValueError, match="read-only"),
    ):
        file.tensors["output_norm.weight"].raw[0] = 1


def parts_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*-of-*.gguf"))


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole_set(write_gguf: WriteGGUF, opened: int) -> None:
    whole = GGUFFile.open(write_gguf("whole.gguf"))
    parts = parts_of(write_gguf("split.gguf", split_max_tensors=2))
    assert [part.name for part in parts] == [f"split-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with whole, GGUFFile.open(parts[opened]) as file:
        assert file.path == parts[0]
        assert file.metadata["general.name"] == "naïve ☃"
        assert file.tensors.keys() == whole.tensors.keys()
        for name, tensor in file.tensors.items():
            np.testing.assert_array_equal(tensor.raw, whole.tensors[name].raw)


@pytest.mark.parametrize(("opened", "missing"), [(0, 1), (0, 2), (2, 0)])
def test_a_missing_part_is_named(write_gguf: WriteGGUF, opened: int, missing: int) -> None:
    parts = parts_of(write_gguf("split.gguf", split_max_tensors=2))
    parts[missing].unlink()
    with pytest.raises(ModelFileError, match=f"lacks {parts[missing].name}$"):
        GGUFFile.open(parts[opened])


def test_a_renamed_part_is_refused(write_gguf: WriteGGUF) -> None:
    part = parts_of(write_gguf("split.gguf", split_max_tensors=2))[1]
    renamed = part.rename(part.with_name("renamed.gguf"))
    with pytest.raises(ModelFileError, match="part 2 of 3, and its name must say so"):
        GGUFFile.open(renamed)


def test_a_part_in_another_parts_place_is_refused(write_gguf: WriteGGUF) -> None:
    parts = parts_of(write_gguf("split.gguf", split_max_tensors=2))
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(ModelFileError, match="not part 3 of 3"):
        GGUFFile.open(parts[0])


def test_tensors_that_got_lost_between_parts_are_noticed(write_gguf: WriteGGUF) -> None:
    parts = parts_of(write_gguf("split.gguf", split_max_tensors=2))
    content = parts[0].read_bytes()
    key = b"split.tensors.count"
    value_at = content.index(key) + len(key) + 4
    parts[0].write_bytes(content[:value_at] + b"\x09" + content[value_at + 1 :])
    with pytest.raises(ModelFileError, match="should hold 9 tensors, its parts hold 5"):
        GGUFFile.open(parts[0])


def test_a_damaged_later_part_is_named(write_gguf: WriteGGUF) -> None:
    parts = parts_of(write_gguf("split.gguf", split_max_tensors=2))
    os.truncate(parts[1], 60)
    with pytest.raises(ModelFileError, match=parts[1].name):
        GGUFFile.open(parts[0])


HAS_PIPES = hasattr(os, "mkfifo")


@pytest.mark.parametrize("kind", ["missing", "folder", "empty"] + ["pipe"] * HAS_PIPES)
def test_things_that_are_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    with pytest.raises(ModelFileError, match=r"model\.gguf: [^\n]+$"):
        GGUFFile.open(path)


def test_a_q8_0_tensor_dequantizes_from_the_file(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    (theirs,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight"]
    with GGUFFile.open(path) as file:
        tensor = file.tensors["token_embd.weight"]
        assert tensor.type is GGMLType.Q8_0
        np.testing.assert_array_equal(
            dequantize(tensor.raw, tensor.type, tensor.shape),
            gguf.dequantize(theirs.data, theirs.tensor_type),
        )
