"""Floats as a file stores them: the right numbers, in place, and only where there are some."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest

from chairlift.errors import ModelFileError
from chairlift.kernels.kv_dtype import from_stored
from chairlift.kernels.stored_floats import short_form
from chairlift.weights.checkpoint import open_checkpoint
from chairlift.weights.ggml_type import GGMLType
from chairlift.weights.stored_floats import short_form_of, view_floats

Types = gguf.GGMLQuantizationType
KINDS = {"F32": None, "F16": "float16", "BF16": "bfloat16"}
MATRIX = np.random.default_rng(0).standard_normal((4, 64), np.float32)


def stored(kind: str) -> bytes:
    """MATRIX as a file has it."""
    if kind == "F32":
        return MATRIX.astype("<f4").tobytes()
    if kind == "F16":
        return MATRIX.astype("<f2").tobytes()
    return (MATRIX.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()


def write_folder(folder: Path, kind: str, padding: int) -> Path:
    """A folder whose tensor lies `padding` bytes further on than in the shortest file."""
    (folder / "config.json").write_text("{}")
    raw = stored(kind)
    entry = {"dtype": kind, "shape": [4, 64], "data_offsets": [0, len(raw)]}
    header = json.dumps({"lm_head.weight": entry}).encode() + b" " * padding
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw)
    return folder


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_folder_s_tensor_wherever_it_lies(tmp_path: Path, kind: str, padding: int) -> None:
    with open_checkpoint(write_folder(tmp_path, kind, padding)) as checkpoint:
        view = checkpoint.view("output.weight")
        assert view is not None and view.shape == (4, 64)
        assert view.flags.aligned and view.flags.c_contiguous
        assert short_form(view) == KINDS[kind] == checkpoint.short_form("output.weight")
        np.testing.assert_array_equal(from_stored(view), checkpoint.load("output.weight"))
        for access in (checkpoint.view, checkpoint.short_form):
            with pytest.raises(ModelFileError, match="has no tensor 'absent'"):
                access("absent")
    # The view keeps its file.
    np.testing.assert_allclose(from_stored(view), MATRIX, rtol=0.01)


def test_what_lies_well_is_not_copied() -> None:
    raw = np.frombuffer(bytearray(stored("BF16") + b"\0"), np.uint8)
    assert raw.ctypes.data % 2 == 0
    for kind, start, is_shared in ((GGMLType.BF16, 0, True), (GGMLType.BF16, 1, False)):
        view = view_floats(raw[start : start + 512], kind, (4, 64))
        assert view is not None and np.shares_memory(view, raw) == is_shared


def test_tensors_of_a_gguf_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for kind in (Types.F32, Types.F16, Types.BF16, Types.Q4_1):
        writer.add_tensor(kind.name, gguf.quants.quantize(MATRIX, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        for name, form in KINDS.items():
            view = checkpoint.view(name)
            assert view is not None and short_form(view) == form == checkpoint.short_form(name)
            np.testing.assert_array_equal(from_stored(view), checkpoint.load(name))
        assert checkpoint.view("Q4_1") is checkpoint.short_form("Q4_1") is None
        for access in (checkpoint.view, checkpoint.short_form):
            with pytest.raises(ModelFileError, match="has no tensor 'absent'"):
                access("absent")


@pytest.mark.parametrize("type", list(GGMLType))
def test_every_type_is_either_floats_or_quantised(type: GGMLType) -> None:
    raw = np.zeros(type.block_bytes, np.uint8)
    view = view_floats(raw, type, (type.block_size,))
    assert (view is None) == (type.block_size > 1)
    assert short_form_of(type) == (None if view is None else short_form(view))
