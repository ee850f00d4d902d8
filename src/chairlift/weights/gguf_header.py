"""Reads the header of one GGUF file (version 2 or 3, little endian) and trusts none of it.

Every count, length and offset is compared with the file's size and with a fixed cap before it is
used, so a cut or lying file costs neither time nor memory: nothing is allocated in proportion to a
number that the file claims.  Strings and arrays are only walked over here and decoded when asked
for.  Split sets and tensor contents are the business of `chairlift.weights.gguf`.

    magic "GGUF" | version u32 | num_tensors u64 | num_keys u64
    num_keys    x  key string | type u32 | value
    num_tensors x  name string | num_dims u32 | dims u64[] (fastest first) | type u32 | offset u64
    padding to general.alignment | tensor data (offsets count from here)

    string = length u64 | UTF-8 bytes        array = element type u32 | count u64 | elements
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chairlift.errors import ModelFileError
from chairlift.weights.ggml_type import GGMLType, type_name

MetadataValue = bool | int | float | str | list[str] | npt.NDArray[Any]

# Caps far above any real model (the largest vocabularies hold about 0.8 million strings with their
# merges) and low enough that reaching them is quick and small.
MAX_KEYS = 4096
MAX_TENSORS = 32_768
MAX_DIMS = 4
MAX_DIM = 1 << 40
MAX_KEY_BYTES = 4096
MAX_TENSOR_NAME_BYTES = 256
MAX_STRING_BYTES = 64 << 20
MAX_ARRAY_BYTES = 128 << 20
MAX_STRINGS = 2 << 20
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

_FIXED_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")


class ValueType(IntEnum):
    """The type numbers of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_SCALARS: dict[ValueType, tuple[struct.Struct, np.dtype[Any]]] = {
    ValueType.UINT8: (struct.Struct("<B"), np.dtype("u1")),
    ValueType.INT8: (struct.Struct("<b"), np.dtype("i1")),
    ValueType.UINT16: (struct.Struct("<H"), np.dtype("<u2")),
    ValueType.INT16: (struct.Struct("<h"), np.dtype("<i2")),
    ValueType.UINT32: (struct.Struct("<I"), np.dtype("<u4")),
    ValueType.INT32: (struct.Struct("<i"), np.dtype("<i4")),
    ValueType.FLOAT32: (struct.Struct("<f"), np.dtype("<f4")),
    ValueType.BOOL: (struct.Struct("<?"), np.dtype("?")),
    ValueType.UINT64: (struct.Struct("<Q"), np.dtype("<u8")),
    ValueType.INT64: (struct.Struct("<q"), np.dtype("<i8")),
    ValueType.FLOAT64: (struct.Struct("<d"), np.dtype("<f8")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies.  `offset` counts bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    """A string (`is_array` false) or an array that has been walked over but not decoded."""

    type: ValueType
    is_array: bool
    start: int
    end: int
    count: int


class GGUFMetadata(Mapping[str, MetadataValue]):
    """The key-value pairs of one file.

    Scalars are Python numbers, strings are `str` (bytes that are not UTF-8 are kept as surrogate
    escapes), arrays of strings are `list[str]`, other arrays are numpy arrays.  Strings and arrays
    are decoded at their first access and then kept, so read them while the file is open.
    """

    def __init__(
        self, data: mmap.mmap, path: Path, values: dict[str, bool | int | float | _Encoded]
    ) -> None:
        self._data = data
        self._path = path
        self._values: dict[str, MetadataValue | _Encoded] = dict(values)

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._values[key]
        if isinstance(value, _Encoded):
            value = self._values[key] = self._decode(key, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def _decode(self, key: str, value: _Encoded) -> MetadataValue:
        if self._data.closed:
            raise ModelFileError(f"{self._path}: metadata {quote(key)} was asked for after close()")
        encoded = self._data[value.start : value.end]
        if not value.is_array:
            return encoded.decode("utf-8", "surrogateescape")
        if value.type is ValueType.STRING:
            return _decode_strings(encoded, value.count)
        if value.type is ValueType.BOOL:
            return np.frombuffer(encoded, np.uint8).astype(np.bool_)
        numbers: npt.NDArray[Any] = np.frombuffer(encoded, _SCALARS[value.type][1]).copy()
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """What the header of one file says, checked."""

    version: int
    metadata: GGUFMetadata
    tensors: dict[str, TensorInfo]


def quote(text: str) -> str:
    """`text` as one short printable piece of an error line, whatever a file put into it."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


def read_header(data: mmap.mmap, path: Path) -> GGUFHeader:
    """Parse and check the header of the GGUF file `path`, mapped as `data`.

    Raises ModelFileError, one line that names the file and what is wrong with it.
    """
    reader = _HeaderReader(data, path)
    version, num_tensors, num_keys = reader.read_fixed_header()
    metadata = GGUFMetadata(data, path, reader.read_metadata(num_keys))
    tensors = reader.read_tensor_infos(num_tensors, reader.alignment(metadata))
    return GGUFHeader(version=version, metadata=metadata, tensors=tensors)


class _HeaderReader:
    """A position in the file that only moves forward, over bytes that are known to be there."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._size = len(data)
        self._position = 0
        self._num_strings = 0

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self._path}: {message}")

    def read_fixed_header(self) -> tuple[int, int, int]:
        magic = bytes(self._data[:4])
        if magic in _OLD_MAGICS:
            raise self.fail("this is a GGML file from before GGUF; convert the model to GGUF anew")
        if magic != b"GGUF":
            raise self.fail("this is not a GGUF file: it does not start with 'GGUF'")
        start = self._take(_FIXED_HEADER.size, "the fixed header")
        _, version, num_tensors, num_keys = _FIXED_HEADER.unpack_from(self._data, start)
        if version & 0xFFFF == 0 and version != 0:
            raise self.fail("this is a big-endian GGUF file; convert it to little endian")
        if version not in (2, 3):
            raise self.fail(f"GGUF version {version} is not supported (2 and 3 are); convert anew")
        # The smallest entries: an empty key with a one-byte value, and a tensor without dims.
        self._check_count(num_keys, MAX_KEYS, 13, "metadata keys")
        self._check_count(num_tensors, MAX_TENSORS, 24, "tensors")
        return version, num_tensors, num_keys

    def read_metadata(self, num_keys: int) -> dict[str, bool | int | float | _Encoded]:
        values: dict[str, bool | int | float | _Encoded] = {}
        for index in range(num_keys):
            key = self._name(f"metadata key {index + 1} of {num_keys}", MAX_KEY_BYTES)
            if key in values:
                raise self.fail(f"metadata key {quote(key)} appears twice")
            values[key] = self._value(f"metadata {quote(key)}")
        return values

    def alignment(self, metadata: GGUFMetadata) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        is_valid = type(value) is int and 8 <= value <= MAX_ALIGNMENT and value & (value - 1) == 0
        if type(value) is not int or not is_valid:
            raise self.fail("general.alignment must be a power of two from 8 to 1048576")
        return value

    def read_tensor_infos(self, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        entries: dict[str, tuple[tuple[int, ...], GGMLType, int]] = {}
        for index in range(num_tensors):
            name = self._name(f"tensor name {index + 1} of {num_tensors}", MAX_TENSOR_NAME_BYTES)
            if name in entries:
                raise self.fail(f"tensor {quote(name)} appears twice")
            entries[name] = self._tensor_entry(name)
        data_start = -(-self._position // alignment) * alignment
        tensors = {
            name: self._tensor_info(name, entry, data_start, alignment)
            for name, entry in entries.items()
        }
        self._check_overlaps(tensors)
        return tensors

    def _tensor_entry(self, name: str) -> tuple[tuple[int, ...], GGMLType, int]:
        what = f"the description of tensor {quote(name)}"
        num_dims = self._u32(what)
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.fail(f"tensor {quote(name)} has {num_dims} dimensions; 1 to 4 are possible")
        dims = tuple(self._u64(what) for _ in range(num_dims))
        if not all(1 <= dim <= MAX_DIM for dim in dims):
            raise self.fail(f"tensor {quote(name)} has the impossible dimensions {list(dims)}")
        number = self._u32(what)
        try:
            type = GGMLType(number)
        except ValueError:
            message = f"tensor {quote(name)}: block type {type_name(number)} is not supported"
            raise self.fail(message) from None
        if dims[0] % type.block_size:
            raise self.fail(
                f"tensor {quote(name)}: rows of {dims[0]} do not divide into {type.name} blocks "
                f"of {type.block_size}"
            )
        return dims[::-1], type, self._u64(what)

    def _tensor_info(
        self,
        name: str,
        entry: tuple[tuple[int, ...], GGMLType, int],
        data_start: int,
        alignment: int,
    ) -> TensorInfo:
        shape, type, relative = entry
        num_elements = 1
        for dim in shape:
            num_elements *= dim
        num_bytes = num_elements // type.block_size * type.block_bytes
        if relative % alignment:
            raise self.fail(f"tensor {quote(name)} is not aligned to {alignment} bytes")
        offset = data_start + relative
        if offset + num_bytes > self._size:
            raise self.fail(
                f"the file is cut or its header lies: tensor {quote(name)} needs bytes {offset} to "
                f"{offset + num_bytes}, the file has {self._size}"
            )
        return TensorInfo(name=name, shape=shape, type=type, offset=offset, num_bytes=num_bytes)

    def _check_overlaps(self, tensors: dict[str, TensorInfo]) -> None:
        end, last = 0, ""
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise self.fail(f"tensors {quote(last)} and {quote(tensor.name)} overlap")
            end, last = tensor.offset + tensor.num_bytes, tensor.name

    def _value(self, what: str) -> bool | int | float | _Encoded:
        type = self._value_type(what)
        if type is ValueType.STRING:
            length = self._u64(what)
            if length > MAX_STRING_BYTES:
                raise self.fail(f"{what} claims a string of {length} bytes")
            start = self._take(length, what)
            return _Encoded(type=type, is_array=False, start=start, end=start + length, count=1)
        if type is ValueType.ARRAY:
            return self._array(what)
        packed = _SCALARS[type][0]
        value: bool | int | float = packed.unpack_from(self._data, self._take(packed.size, what))[0]
        return value

    def _array(self, what: str) -> _Encoded:
        type = self._value_type(what)
        count = self._u64(what)
        start = self._position
        if type is ValueType.ARRAY:
            raise self.fail(f"{what} is an array of arrays, which no model uses")
        if type is ValueType.STRING:
            self._skip_strings(count, what)
        else:
            num_bytes = count * _SCALARS[type][1].itemsize
            if num_bytes > MAX_ARRAY_BYTES:
                raise self.fail(f"{what} claims an array of {count} values")
            self._take(num_bytes, what)
        return _Encoded(type=type, is_array=True, start=start, end=self._position, count=count)

    def _skip_strings(self, count: int, what: str) -> None:
        self._num_strings += count
        if self._num_strings > MAX_STRINGS:
            raise self.fail(f"{what} claims an array of {count} strings")
        if count * 8 > self._size - self._position:
            raise self._cut(what)
        data, unpack = self._data, _U64.unpack_from
        position = self._position
        last_start = self._size - 8
        for _ in range(count):
            if position > last_start:
                raise self._cut(what)
            position += 8 + unpack(data, position)[0]
        num_bytes = position - self._position
        if num_bytes > MAX_ARRAY_BYTES:
            raise self.fail(f"{what} claims {num_bytes} bytes of strings")
        self._take(num_bytes, what)

    def _value_type(self, what: str) -> ValueType:
        number = self._u32(what)
        try:
            return ValueType(number)
        except ValueError:
            raise self.fail(f"{what} has the unknown value type {number}") from None

    def _name(self, what: str, max_bytes: int) -> str:
        length = self._u64(what)
        if length > max_bytes:
            raise self.fail(f"{what} claims {length} bytes; at most {max_bytes} are read")
        start = self._take(length, what)
        try:
            return self._data[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8") from None

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._data, self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._data, self._take(8, what))[0]
        return value

    def _take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes` that are surely there; returns where they start."""
        start = self._position
        if num_bytes > self._size - start:
            raise self._cut(what)
        self._position = start + num_bytes
        return start

    def _cut(self, what: str) -> ModelFileError:
        return self.fail(
            f"the file is cut or its header lies: {what} starts near byte {self._position} and "
            f"does not end within the file's {self._size} bytes"
        )

    def _check_count(self, count: int, cap: int, min_bytes: int, what: str) -> None:
        if count > cap:
            raise self.fail(f"the header claims {count} {what}; at most {cap} are read")
        if count * min_bytes > self._size - self._position:
            raise self.fail(
                f"the file is cut or its header lies: {count} {what} do not fit into "
                f"{self._size} bytes"
            )


def _decode_strings(encoded: bytes, count: int) -> list[str]:
    strings: list[str] = []
    append, unpack = strings.append, _U64.unpack_from
    position = 0
    for _ in range(count):
        start = position + 8
        position = start + unpack(encoded, position)[0]
        append(encoded[start:position].decode("utf-8", "surrogateescape"))
    return strings
