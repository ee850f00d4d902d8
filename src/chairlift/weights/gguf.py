"""GGUF files, single or split into parts, opened by memory mapping and checked before use.

Owns the mapping and the joining of split sets; the header's bytes are read by
`chairlift.weights.gguf_header`, the blocks' bits by `chairlift.weights.dequantize`.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from chairlift.errors import ModelFileError
from chairlift.weights.ggml_type import GGMLType
from chairlift.weights.gguf_header import GGUFHeader, MetadataValue, read_header
from chairlift.weights.mapped_file import map_file, unmap

MAX_PARTS = 1024
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """One tensor: what it is and where its bytes lie."""

    name: str
    shape: tuple[int, ...]
    """In numpy order: the axis that is contiguous in memory comes last."""
    type: GGMLType
    num_bytes: int
    _data: mmap.mmap = field(repr=False)
    _offset: int = field(repr=False)

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, a read-only view [num_bytes] of the mapped file."""
        if self._data.closed:
            raise ModelFileError(f"tensor {self.name!r} was asked for after close()")
        return np.frombuffer(self._data, np.uint8, count=self.num_bytes, offset=self._offset)


class GGUFFile:
    """An open GGUF file, or all parts of a split one.  Use as a context manager, or close()."""

    def __init__(
        self,
        *,
        path: Path,
        version: int,
        metadata: Mapping[str, MetadataValue],
        tensors: Mapping[str, GGUFTensor],
        mappings: list[mmap.mmap],
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        self.tensors = tensors
        self._mappings = mappings

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Open the GGUF file `path`; of a split set any part will do, and all are opened.

        Raises ModelFileError in one line: missing, cut, inconsistent, of an unknown kind, or a
        part of the set is missing.
        """
        first = _Part.open(path)
        parts = [first]
        try:
            if _split_number(first, "split.count", default=1) > 1:
                parts = _open_set(first)
            return cls(
                path=parts[0].path,
                version=parts[0].header.version,
                metadata=parts[0].header.metadata,
                tensors=_join_tensors(parts),
                mappings=[part.data for part in parts],
            )
        except BaseException:
            first.data.close()
            for part in parts:
                part.data.close()
            raise

    def close(self) -> None:
        """Unmap the file.  Tensor views that are still in use keep their part mapped."""
        unmap(self._mappings)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def part_of_set(name: str) -> tuple[str, int, int] | None:
    """(stem, part number from 1, number of parts) of the file name of a split set's part."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return None
    return match["stem"], int(match["number"]), int(match["count"])


def part_name(stem: str, number: int, count: int) -> str:
    """The file name of part `number` (from 1) of `count`."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    path: Path
    data: mmap.mmap
    header: GGUFHeader

    @staticmethod
    def open(path: Path) -> _Part:
        data = map_file(path, min_bytes=24)
        try:
            return _Part(path=path, data=data, header=read_header(data, path))
        except BaseException:
            data.close()
            raise


def _split_number(part: _Part, key: str, *, default: int | None = None) -> int:
    value = part.header.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise ModelFileError(f"{part.path}: metadata {key} must be a count")
    return value


def _open_set(first: _Part) -> list[_Part]:
    """Open every part of the set that `first` belongs to, in order; `first` is not reopened."""
    count = _split_number(first, "split.count")
    named = part_of_set(first.path.name)
    if count > MAX_PARTS:
        raise ModelFileError(f"{first.path}: claims to be one of {count} parts")
    if named is None or named[2] != count or named[1] != _split_number(first, "split.no") + 1:
        raise ModelFileError(
            f"{first.path}: this is part {_split_number(first, 'split.no') + 1} of {count}, and "
            f"its name must say so, as in {part_name('model', 1, count)}"
        )
    paths = [first.path.with_name(part_name(named[0], i + 1, count)) for i in range(count)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelFileError(
            f"{first.path}: the set of {count} parts lacks {', '.join(missing[:3])}{more}"
        )
    parts: list[_Part] = []
    try:
        for number, path in enumerate(paths):
            parts.append(first if path == first.path else _Part.open(path))
            _check_part(parts[-1], number, count)
        _check_complete(parts)
    except BaseException:
        for part in parts:
            part.data.close()
        raise
    return parts


def _check_part(part: _Part, number: int, count: int) -> None:
    if (_split_number(part, "split.no"), _split_number(part, "split.count")) != (number, count):
        raise ModelFileError(
            f"{part.path}: by its metadata this is not part {number + 1} of {count}; the parts "
            "come from different sets"
        )


def _check_complete(parts: list[_Part]) -> None:
    claimed = _split_number(parts[0], "split.tensors.count")
    found = sum(len(part.header.tensors) for part in parts)
    if claimed != found:
        raise ModelFileError(
            f"{parts[0].path}: the set should hold {claimed} tensors, its parts hold {found}"
        )


def _join_tensors(parts: list[_Part]) -> dict[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for part in parts:
        for info in part.header.tensors.values():
            if info.name in tensors:
                raise ModelFileError(f"{part.path}: tensor {info.name!r} is in two parts")
            tensors[info.name] = GGUFTensor(
                name=info.name,
                shape=info.shape,
                type=info.type,
                num_bytes=info.num_bytes,
                _data=part.data,
                _offset=info.offset,
            )
    return tensors
