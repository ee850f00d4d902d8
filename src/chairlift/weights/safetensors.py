"""Hugging Face safetensors files: one `model.safetensors`, or an index with its shards.

A reader of our own, because the `safetensors` package cannot give BF16 tensors to numpy, and
because every offset is to be checked against the file before a byte is mapped.

    header size u64 | JSON header | data
    header = {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ...}
    offsets count from the start of the data; together the tensors fill it without gaps

Tensor names are left as they are; `chairlift.weights.tensor_names` translates them.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from chairlift.errors import ModelFileError
from chairlift.weights.dequantize import dequantize
from chairlift.weights.ggml_type import GGMLType
from chairlift.weights.json_file import parse_json_object, read_json_object
from chairlift.weights.mapped_file import map_file, unmap

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 8 << 20
MAX_SHARDS = 1024
MAX_DIMS = 8

_U64 = struct.Struct("<Q")
_TYPES = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    type: GGMLType
    shape: tuple[int, ...]
    data: mmap.mmap
    offset: int
    num_bytes: int


class SafetensorsFolder:
    """The tensors of one checkpoint folder, mapped; the names are those of the files."""

    def __init__(self, tensors: Mapping[str, _Tensor], mappings: list[mmap.mmap]) -> None:
        self._tensors = tensors
        self._mappings = mappings

    @classmethod
    def open(cls, folder: Path) -> SafetensorsFolder:
        """Map `model.safetensors` of `folder`, or all shards that its index names.

        Raises ModelFileError: a file is missing, cut or inconsistent, a tensor is of a type other
        than F32, F16 and BF16, or the index leads out of the folder.
        """
        is_sharded = (folder / INDEX_FILE).is_file()
        weight_map = _read_index(folder / INDEX_FILE) if is_sharded else None
        names = [SINGLE_FILE] if weight_map is None else sorted(set(weight_map.values()))
        mappings: list[mmap.mmap] = []
        tensors: dict[str, _Tensor] = {}
        try:
            for name in names:
                mappings.append(map_file(folder / name, min_bytes=8))
                found = _read_header(mappings[-1], folder / name)
                if weight_map is not None:
                    _check_shard(folder / name, found, weight_map)
                tensors.update(found)
        except BaseException:
            unmap(mappings)
            raise
        return cls(tensors, mappings)

    def names(self) -> list[str]:
        """The tensor names, as in the files."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor `name`."""
        return self._tensors[name].shape

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """A new float32 array with the values of tensor `name`."""
        tensor = self._tensors[name]
        return dequantize(self.raw(name), tensor.type, tensor.shape)

    def type(self, name: str) -> GGMLType:
        """F32, F16 or BF16."""
        return self._tensors[name].type

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, a read-only view [num_bytes] of the mapped file."""
        tensor = self._tensors[name]
        if tensor.data.closed:
            raise ModelFileError(f"tensor {name!r} was asked for after close()")
        return np.frombuffer(tensor.data, np.uint8, count=tensor.num_bytes, offset=tensor.offset)

    def close(self) -> None:
        """Unmap the files."""
        unmap(self._mappings)


def _read_index(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: weight_map must be an object that names the shards")
    for name in weight_map.values():
        if not isinstance(name, str) or not _is_plain_file_name(name):
            raise ModelFileError(
                f"{path}: weight_map names {ascii(name)[:80]}, which is not a .safetensors file "
                "of this folder"
            )
    if len(set(weight_map.values())) > MAX_SHARDS:
        raise ModelFileError(f"{path}: names more than {MAX_SHARDS} shards")
    return weight_map


def _is_plain_file_name(name: str) -> bool:
    return (
        name.endswith(".safetensors")
        and not any(character in name for character in "/\\:\0")
        and name.isprintable()
    )


def _check_shard(path: Path, found: Mapping[str, _Tensor], weight_map: dict[str, str]) -> None:
    promised = {name for name, shard in weight_map.items() if shard == path.name}
    missing = sorted(promised - found.keys())
    unasked = sorted(found.keys() - promised)
    if missing:
        raise ModelFileError(f"{path}: lacks {ascii(missing[0])[:80]}, which the index puts there")
    if unasked:
        raise ModelFileError(f"{path}: holds {ascii(unasked[0])[:80]}, unknown to the index")


def _read_header(data: mmap.mmap, path: Path) -> dict[str, _Tensor]:
    header_bytes: int = _U64.unpack_from(data, 0)[0]
    if header_bytes > MAX_HEADER_BYTES or header_bytes > len(data) - 8:
        raise ModelFileError(
            f"{path}: the file is cut or not safetensors: it claims a header of {header_bytes} "
            f"bytes and has {len(data)}"
        )
    header = parse_json_object(data[8 : 8 + header_bytes], f"{path}: header")
    header.pop("__metadata__", None)
    start = 8 + header_bytes
    tensors = {name: _read_entry(name, entry, data, start, path) for name, entry in header.items()}
    _check_tiling(tensors, start, len(data), path)
    return tensors


def _read_entry(name: str, entry: Any, data: mmap.mmap, start: int, path: Path) -> _Tensor:
    what = f"{path}: tensor {ascii(name)[:80]}"
    if not isinstance(entry, dict):
        raise ModelFileError(f"{what} is not described by an object")
    dtype, shape, offsets = (entry.get("dtype"), entry.get("shape"), entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise ModelFileError(
            f"{what} is of type {ascii(dtype)[:40]}; only F32, F16 and BF16 are supported"
        )
    if not _is_int_list(shape) or len(shape) > MAX_DIMS:
        raise ModelFileError(f"{what} has no valid shape")
    if not _is_int_list(offsets) or len(offsets) != 2:
        raise ModelFileError(f"{what} has no valid data_offsets")
    begin, end = offsets
    num_bytes = math.prod(shape) * _TYPES[dtype].block_bytes
    if end - begin != num_bytes:
        raise ModelFileError(f"{what} has data_offsets that do not fit its shape")
    if start + end > len(data):
        raise ModelFileError(
            f"{what} ends at byte {start + end} and the file at {len(data)}: the file is cut"
        )
    return _Tensor(
        type=_TYPES[dtype], shape=tuple(shape), data=data, offset=start + begin, num_bytes=num_bytes
    )


def _is_int_list(value: Any) -> TypeGuard[list[int]]:
    # No number of a real file comes near 2^62; the cap keeps the arithmetic small.
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 1 << 62 for item in value
    )


def _check_tiling(tensors: Mapping[str, _Tensor], start: int, size: int, path: Path) -> None:
    position = start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset != position:
            raise ModelFileError(f"{path}: the tensors overlap or leave gaps at byte {position}")
        position += tensor.num_bytes
    if position != size:
        raise ModelFileError(f"{path}: {size - position} bytes at the end belong to no tensor")
