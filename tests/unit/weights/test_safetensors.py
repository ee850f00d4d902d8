"""safetensors folders as written by the `safetensors` package, and damaged ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from chairlift.errors import ModelFileError
from chairlift.weights.safetensors import SafetensorsFolder


def write(path: Path, header: Any, data: bytes = b"") -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "b": rng.random((3, 4), np.float32),
        "a": rng.random((2, 2, 2)).astype(np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(2.5, np.float32),
    }


def test_one_file(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    folder = SafetensorsFolder.open(tmp_path)
    assert set(folder.names()) == set(tensors)
    for name, values in tensors.items():
        loaded = folder.load(name)
        assert loaded.dtype == np.float32
        assert folder.shape(name) == values.shape
        np.testing.assert_array_equal(loaded, values.astype(np.float32))
    folder.close()
    np.testing.assert_array_equal(loaded, 2.5)
    with pytest.raises(ModelFileError, match=r"after close\(\)"):
        folder.load("a")


def test_bf16_is_widened_exactly(tmp_path: Path) -> None:
    values = np.array([1.0, -0.0, 3.140625, np.inf, 2.0**-130], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    write(tmp_path / "model.safetensors", {"x": entry("BF16", [5], 0, 10)}, halves.tobytes())
    folder = SafetensorsFolder.open(tmp_path)
    np.testing.assert_array_equal(folder.load("x").view(np.uint32), values.view(np.uint32))
    folder.close()


def write_shards(folder: Path, weight_map: dict[str, Any]) -> None:
    save_file({"a": np.ones(2, np.float32)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": np.full(3, 2, np.float32)}, folder / "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 20}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


SHARDS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS)
    folder = SafetensorsFolder.open(tmp_path)
    assert folder.names() == ["a", "b"]
    np.testing.assert_array_equal(folder.load("b"), [2, 2, 2])
    folder.close()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS)
    (tmp_path / SHARDS["b"]).unlink()
    with pytest.raises(ModelFileError, match=f"{SHARDS['b']}: there is no such file"):
        SafetensorsFolder.open(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../model-00002-of-00002.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x\0.safetensors",
        "x.bin",
        "",
        3,
    ],
)
def test_an_index_that_leaves_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    write_shards(tmp_path, {**SHARDS, "c": name})
    with pytest.raises(ModelFileError, match="not a .safetensors file of this folder"):
        SafetensorsFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        ({**SHARDS, "c": SHARDS["a"]}, "lacks 'c'"),
        ({"a": SHARDS["a"], "c": SHARDS["b"]}, "lacks 'c'"),
        ({"a": SHARDS["a"]}, None),
        ({}, "must be an object"),
        ([], "must be an object"),
    ],
)
def test_an_index_and_its_shards_must_agree(
    tmp_path: Path, weight_map: Any, expected: str | None
) -> None:
    write_shards(tmp_path, weight_map)
    if expected is None:
        assert SafetensorsFolder.open(tmp_path).names() == ["a"]
        return
    with pytest.raises(ModelFileError, match=expected):
        SafetensorsFolder.open(tmp_path)


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    write_shards(tmp_path, SHARDS)
    both = {"b": np.ones(1, np.float32), "z": np.ones(1, np.float32)}
    save_file(both, tmp_path / SHARDS["b"])
    with pytest.raises(ModelFileError, match="holds 'z', unknown to the index"):
        SafetensorsFolder.open(tmp_path)


F32_PAIR = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}


@pytest.mark.parametrize(
    ("header", "data", "expected"),
    [
        (b"", b"", "not valid JSON"),
        (b"{", b"", "not valid JSON"),
        (b"[" * 50_000, b"", "nested too deeply"),
        (b'{"a": 1, "a": 2}', b"", "appears twice"),
        ({"a": 3}, b"", "not described by an object"),
        ({"a": entry("I64", [1], 0, 8)}, bytes(8), "type 'I64'; only F32, F16 and BF16"),
        ({"a": entry("F8_E4M3", [1], 0, 1)}, bytes(1), "type 'F8_E4M3'"),
        ({"a": {**entry("F32", [1], 0, 4), "dtype": ["F32"]}}, bytes(4), "only F32"),
        ({"a": entry("F32", [-1], 0, 4)}, bytes(4), "no valid shape"),
        ({"a": entry("F32", [True], 0, 4)}, bytes(4), "no valid shape"),
        ({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4), "no valid shape"),
        ({"a": entry("F32", [2**60], 0, 4)}, bytes(4), "do not fit its shape"),
        ({"a": entry("F32", [2**61, 8], 0, 0)}, b"", "do not fit its shape"),
        ({"a": entry("F32", [1], 4, 0)}, bytes(4), "do not fit its shape"),
        ({"a": entry("F32", [1], -4, 0)}, bytes(4), "no valid data_offsets"),
        ({"a": {**entry("F32", [1], 0, 4), "data_offsets": [0, 4, 8]}}, bytes(4), "no valid"),
        ({"a": {**entry("F32", [1], 0, 4), "data_offsets": None}}, bytes(4), "no valid"),
        ({"a": entry("F32", [2], 0, 8)}, bytes(7), "the file is cut"),
        ({"a": entry("F32", [2], 0, 8)}, bytes(9), "1 bytes at the end belong to no tensor"),
        ({**F32_PAIR, "c": entry("F32", [1], 4, 8)}, bytes(16), "overlap or leave gaps"),
        ({"a": entry("F32", [1], 4, 8)}, bytes(8), "overlap or leave gaps"),
    ],
)
def test_a_lying_header_is_refused(tmp_path: Path, header: Any, data: bytes, expected: str) -> None:
    write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ModelFileError, match=expected) as caught:
        SafetensorsFolder.open(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("claimed", [100, 2**24, 2**60, 2**64 - 1])
def test_a_header_size_beyond_the_file_is_refused(tmp_path: Path, claimed: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", claimed) + b"{}")
    with pytest.raises(ModelFileError, match="cut or not safetensors"):
        SafetensorsFolder.open(tmp_path)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_a_mutated_file_opens_or_is_refused(
    tmp_path: Path, at: float, byte: int, cut: bool
) -> None:
    path = tmp_path / "model.safetensors"
    write(path, F32_PAIR, bytes(range(16)))
    content = bytearray(path.read_bytes())
    position = int(at * len(content))
    content[position] = byte
    path.write_bytes(content[:position] if cut else content)
    try:
        folder = SafetensorsFolder.open(tmp_path)
        for name in folder.names():
            folder.load(name)
        folder.close()
    except ModelFileError as error:
        assert "\n" not in str(error)
