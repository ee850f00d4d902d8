"""One face for both kinds of checkpoint, and what is refused as a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from safetensors.numpy import save_file

from chairlift.errors import ModelFileError
from chairlift.weights.checkpoint import GGUFCheckpoint, open_checkpoint

WriteGGUF = Callable[..., Path]


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}), "utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}', "utf-8")
    save_file(
        {
            "model.embed_tokens.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
            "model.layers.0.self_attn.q_proj.bias": np.ones(2, np.float16),
            "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(9, np.float32),
        },
        folder / "model.safetensors",
    )
    return folder


def test_a_hugging_face_folder(hf_folder: Path) -> None:
    with open_checkpoint(hf_folder) as checkpoint:
        assert checkpoint.kind == "huggingface"
        assert checkpoint.path == hf_folder
        assert checkpoint.metadata == {
            "config": {"model_type": "qwen2"},
            "generation_config": {"eos_token_id": [1, 2]},
        }
        assert set(checkpoint.names()) == {"token_embd.weight", "blk.0.attn_q.bias"}
        assert checkpoint.shape("token_embd.weight") == (3, 2)
        assert checkpoint.num_bytes == (6 + 2) * 4
        np.testing.assert_array_equal(checkpoint.load("blk.0.attn_q.bias"), [1, 1])
        assert checkpoint.load_grouped("token_embd.weight") is None
        for access in (checkpoint.shape, checkpoint.load, checkpoint.load_grouped):
            with pytest.raises(ModelFileError, match=r"has no tensor 'output\.weight'"):
                access("output.weight")


def test_quantised_matrices_can_stay_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((4, 64), np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("packed.weight", gguf.quants.quantize(matrix, kind), raw_dtype=kind)
    writer.add_tensor("plain.weight", matrix)
    writer.add_tensor("norm.weight", matrix[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        grouped, form = (
            checkpoint.load_grouped("packed.weight"),
            checkpoint.group_form("packed.weight"),
        )
        assert grouped is not None and form is not None
        assert (grouped.bits, form.bits, form.has_minimum) == (4, 4, True)
        floats = checkpoint.load("packed.weight")
        np.testing.assert_allclose(grouped.dequantize(), floats, rtol=0, atol=1e-6)
        for name in ("plain.weight", "norm.weight"):
            assert checkpoint.load_grouped(name) is checkpoint.group_form(name) is None
        with pytest.raises(ModelFileError, match="has no tensor 'absent'"):
            checkpoint.load_grouped("absent")


def test_a_gguf_file(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.kind == "gguf"
        assert checkpoint.path == path
        assert checkpoint.metadata["llama.block_count"] == 2
        assert checkpoint.shape("token_embd.weight") == (4, 64)
        assert checkpoint.num_bytes == (3 * 5 + 4 * 64 + 2 * 3) * 4
        loaded = {name: checkpoint.load(name) for name in checkpoint.names()}
        for access in (checkpoint.shape, checkpoint.load):
            with pytest.raises(ModelFileError, match=r"has no tensor 'output\.weight'"):
                access("output.weight")
    for tensor in gguf.GGUFReader(path).tensors:
        theirs = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        np.testing.assert_array_equal(loaded[tensor.name], theirs)


@pytest.mark.parametrize("parts", [0, 2])
def test_a_folder_with_one_gguf_model(write_gguf: WriteGGUF, parts: int) -> None:
    path = write_gguf(split_max_tensors=parts)
    (path.parent / "mmproj-model.gguf").touch()
    with open_checkpoint(path.parent) as checkpoint:
        assert isinstance(checkpoint, GGUFCheckpoint)
        assert checkpoint.path == path
        assert len(checkpoint.names()) == 5


def test_a_folder_with_several_gguf_models_lists_them(write_gguf: WriteGGUF) -> None:
    write_gguf("b.gguf")
    path = write_gguf("a.gguf", split_max_tensors=2)
    with pytest.raises(ModelFileError, match=r"name one of a-00001-of-00003\.gguf, b\.gguf$"):
        open_checkpoint(path.parent)


def test_safetensors_win_over_gguf_in_one_folder(hf_folder: Path) -> None:
    (hf_folder / "model.gguf").touch()
    with open_checkpoint(hf_folder) as checkpoint:
        assert checkpoint.kind == "huggingface"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "holds no model"),
        (["README.md"], "holds no model"),
        (["pytorch_model.bin", "config.json"], "pickle files are not loaded"),
        (["consolidated.00.pth"], "pickle files are not loaded"),
        (["model.safetensors"], r"config\.json: there is no such file"),
    ],
)
def test_folders_without_a_model(tmp_path: Path, files: list[str], expected: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelFileError, match=expected):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pytorch_model.bin", "pickle files are not loaded"),
        ("model.safetensors", "name the folder"),
        ("notes.txt", "not a GGUF file"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / name).write_bytes(bytes(100))
    with pytest.raises(ModelFileError, match=expected):
        open_checkpoint(tmp_path / name)


@pytest.mark.parametrize("name", ["absent.gguf", "absent", "x" * 5000])
def test_missing_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match="no such file or folder|cannot be read"):
        open_checkpoint(tmp_path / name)


def test_an_unknown_tensor_name_is_named_with_its_folder(hf_folder: Path) -> None:
    save_file({"model.vision.weight": np.ones(1, np.float32)}, hf_folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"hf: tensor 'model\.vision\.weight' is unknown"):
        open_checkpoint(hf_folder)


def test_two_names_for_one_tensor_are_refused(hf_folder: Path) -> None:
    one = np.ones(1, np.float32)
    save_file({"model.norm.weight": one, "norm.weight": one}, hf_folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"output_norm\.weight is there twice"):
        open_checkpoint(hf_folder)
