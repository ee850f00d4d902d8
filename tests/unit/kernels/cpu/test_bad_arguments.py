"""Every C function refuses every bad argument: a null, a misaligned pointer, a size out of range.

One fault at a time is put into a call that works.  How much memory is behind a pointer is the
caller's word, so a size that is a little too large cannot be seen; sizes that no memory can hold,
and whose products would overflow, can.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.kernels.cpu.attention_int8 import KV_INT8, AttentionInt8Task, QkvToCacheTask
from chairlift.kernels.cpu.int8 import AttentionBlockTask
from chairlift.kernels.cpu.library import SIGNATURES, AttentionTask, NativeLibrary
from chairlift.kernels.cpu.linear_q8 import GroupedWeightsStruct

NEGATIVE = (-1, -(2**63))
ABSURD = (2**48, 2**62, 2**63 - 1)
TOKENS, HEADS, KV_HEADS, DIM, HIDDEN = 3, 2, 1, 16, 64
BLOCK_SIZE, BLOCKS, PIECE_BYTES = 16, 2, 32 * DIM + 128


# -- arguments and their faults ------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A value that cannot be wrong."""

    value: Any


@dataclass(frozen=True)
class Pool:
    """Threads; the address of one cannot be told from another's."""

    value: ctypes.c_void_p


@dataclass(frozen=True)
class Pointer:
    array: NDArray[Any]
    is_optional: bool = False


@dataclass(frozen=True)
class Size:
    value: int
    least: int = 0
    may_be_absurd: bool = False


@dataclass(frozen=True)
class Choice:
    value: Any
    wrong: tuple[Any, ...]


@dataclass(frozen=True)
class Struct:
    """A structure by reference, or inside another one; fields that are left out are zero."""

    type: type[ctypes.Structure]
    fields: Mapping[str, Argument]


Argument = Plain | Pool | Pointer | Size | Choice | Struct


def value_of(argument: Argument) -> Any:
    if isinstance(argument, Pointer):
        return argument.array.ctypes.data
    if isinstance(argument, Struct):
        return structure(argument, {})
    return argument.value


def structure(argument: Struct, faulty: Mapping[str, Any]) -> ctypes.Structure:
    fields = {name: value_of(field) for name, field in argument.fields.items()}
    return argument.type(**({"struct_size": ctypes.sizeof(argument.type)} | fields | dict(faulty)))


class Misplaced(NamedTuple):
    """A copy of a structure, one byte beside where it may begin."""

    memory: ctypes.Array[ctypes.c_char]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.memory) + 1


def misplace(whole: ctypes.Structure) -> Misplaced:
    copy = Misplaced(ctypes.create_string_buffer(ctypes.sizeof(whole) + 16))
    ctypes.memmove(copy.address, ctypes.addressof(whole), ctypes.sizeof(whole))
    return copy


def faults(argument: Argument) -> Iterator[tuple[str, Any]]:
    """What is wrong, and the value that is passed instead."""
    if isinstance(argument, Pool):
        yield "null", None
    elif isinstance(argument, Pointer):
        if not argument.is_optional:
            yield "null", None
        if argument.array.itemsize > 1:
            yield "misaligned", argument.array.ctypes.data + 1
    elif isinstance(argument, Size):
        yield from ((str(value), value) for value in NEGATIVE)
        if not argument.may_be_absurd:
            yield from ((str(value), value) for value in ABSURD)
        if argument.least > 0:
            yield "0", 0
    elif isinstance(argument, Choice):
        yield from ((str(value), value) for value in argument.wrong)
    elif isinstance(argument, Struct):
        yield "null", None
        yield "misaligned", misplace(structure(argument, {}))
        for size in (0, ctypes.sizeof(argument.type) - 8, ctypes.sizeof(argument.type) + 8):
            yield f"struct_size {size}", structure(argument, {"struct_size": size})
        for name, field in argument.fields.items():
            for what, value in faults(field):
                if isinstance(field, Struct) and not isinstance(value, ctypes.Structure):
                    continue  # it lies inside, so it has no address of its own
                yield f"{name} {what}", structure(argument, {name: value})


# -- calls that work -----------------------------------------------------------------------------


class Calls:
    """The arguments of a call of each function, by its name."""

    def __init__(self, library: NativeLibrary) -> None:
        self.library, self.functions = library, library.functions
        self.pool = Pool(library.create_pool(2))
        self.rng = np.random.default_rng(0)

    def floats(self, *shape: int, is_optional: bool = False) -> Pointer:
        return Pointer(self.rng.standard_normal(shape, np.float32), is_optional)

    def integers(self, *values: int) -> Pointer:
        return Pointer(np.array(values, np.int32))

    def grouped(self, out_features: int, in_features: int, interleave: int = 0) -> Struct:
        groups = (out_features, in_features // 32)
        return Struct(
            GroupedWeightsStruct,
            {
                "codes": Pointer(self.rng.integers(0, 16, (out_features, in_features), np.uint8)),
                "scales": self.floats(*groups),
                "mins": self.floats(*groups),
                "out_features": Size(out_features, least=1),
                "in_features": Size(in_features, least=1),
                "bits": Choice(4, (-4, 0, 3, 5, 16, 2**31 - 1)),
                "group_size": Choice(32, (-32, 0, 8, 33, 2**31 - 1)),
                "interleave": Choice(interleave, (-16, 1, 33, 2**31 - 1)),
                "per_channel": Plain(0),
            },
        )

    def packed(self, out_features: int, in_features: int, interleave: int = 0) -> Pointer:
        weights = self.grouped(out_features, in_features, interleave)
        description = structure(weights, {})
        size = self.functions.chairlift_linear_q8_size(ctypes.byref(description))
        packed = np.zeros(size // 8, np.uint64)
        self.library.check(
            self.functions.chairlift_linear_q8_pack(
                self.pool.value, ctypes.byref(description), packed.ctypes.data
            )
        )
        return Pointer(packed)

    def cache(self) -> dict[str, Argument]:
        """What structures say of a cache of bytes, and of the heads in it."""
        return {
            "kv_cache": Pointer(np.zeros(BLOCKS * PIECE_BYTES, np.uint8)),
            "block_stride": Size(PIECE_BYTES),
            "num_blocks": Size(BLOCKS),
            "num_tokens": Size(TOKENS),
            "block_size": Size(BLOCK_SIZE, least=1),
            "num_heads": Size(HEADS, least=1),
            "num_kv_heads": Size(KV_HEADS, least=1),
            "head_dim": Size(DIM, least=1),
        }

    def sequences(self) -> dict[str, Argument]:
        """Two: one new token after four in block 1, and two that are all there is in block 0."""
        return {
            "query_start": self.integers(0, 1, 3),
            "context_lens": self.integers(5, 2),
            "block_tables": self.integers(1, 0),
            "num_sequences": Size(2),
            "max_blocks": Size(1),
            "sliding_window": Size(0, may_be_absurd=True),
            "scale": Plain(0.25),
        }

    def store_fields(self) -> dict[str, Argument]:
        return self.cache() | {
            "q_norm": self.floats(DIM, is_optional=True),
            "k_norm": self.floats(DIM, is_optional=True),
            "cos": self.floats(8, DIM // 2),
            "sin": self.floats(8, DIM // 2),
            "positions": self.integers(4, 0, 1),
            "slots": Pointer(np.array([BLOCK_SIZE + 4, 0, 1], np.int64)),
            "max_position": Size(8),
            "rope_dim": Size(DIM),
            "rope_interleaved": Plain(0),
            "norm_eps": Plain(1e-5),
        }

    def query_fields(self) -> dict[str, Argument]:
        return {
            "query": Pointer(np.zeros((TOKENS, HEADS, DIM), np.int8)),
            "query_scales": self.floats(TOKENS, HEADS),
        }

    def qkv(self) -> Pointer:
        return self.floats(TOKENS, HEADS + 2 * KV_HEADS, DIM)

    # -- one for each function -------------------------------------------------------------------

    def set_isa(self) -> list[Argument]:
        return [Choice(self.library.isa.encode(), (None, b"", b"sparc"))]

    def pool_create(self) -> list[Argument]:
        made = np.zeros(1, np.uint64)
        return [Choice(2, (-1, 0, 1025, 2**31 - 1)), Pointer(made)]

    def linear_f32_size(self) -> list[Argument]:
        return [Size(33, least=1), Size(8, least=1)]

    def linear_f32_pack(self) -> list[Argument]:
        sizes = [Size(33, least=1), Size(8, least=1)]
        return [self.pool, self.floats(33, 8), *sizes, self.floats(64, 8)]

    def linear_f32(self) -> list[Argument]:
        sizes = [Size(33, least=1), Size(8, least=1)]
        bias = self.floats(33, is_optional=True)
        x, packed, out = self.floats(TOKENS, 8), self.floats(64, 8), self.floats(TOKENS, 33)
        return [self.pool, x, Size(TOKENS), packed, bias, *sizes, out]

    def linear_q8_size(self) -> list[Argument]:
        return [self.grouped(48, 64)]

    def linear_q8_pack(self) -> list[Argument]:
        return [self.pool, self.grouped(48, 64), Pointer(np.zeros(1024, np.uint64))]

    def linear_q8(self) -> list[Argument]:
        bias, residual = (self.floats(*s, is_optional=True) for s in ((48,), (TOKENS, 48)))
        x, out = self.floats(TOKENS, 64), self.floats(TOKENS, 48)
        return [self.pool, x, Size(TOKENS), self.packed(48, 64), bias, residual, out]

    def norm_linear_q8(self) -> list[Argument]:
        pool, x, rows, packed, *rest = self.linear_q8()
        return [pool, x, rows, self.floats(64, is_optional=True), Plain(1e-5), packed, *rest]

    def mlp_q8(self) -> list[Argument]:
        x, out = self.floats(TOKENS, 64), self.floats(TOKENS, 64)
        residual = self.floats(TOKENS, 64, is_optional=True)
        matrices = [self.packed(64, 64, interleave=16), self.packed(64, 32)]
        return [self.pool, x, Size(TOKENS), *matrices, residual, out]

    def norm_mlp_q8(self) -> list[Argument]:
        pool, x, rows, gate_up, down, *rest = self.mlp_q8()
        norm, *biases = (self.floats(64, is_optional=True) for _ in range(3))
        matrices = [gate_up, biases[0], down, biases[1]]
        return [pool, x, rows, norm, Plain(1e-5), *matrices, *rest]

    def rows_q8(self) -> list[Argument]:
        ids, out = self.integers(5, 0, 47), self.floats(3, 64)
        return [self.pool, self.packed(48, 64), ids, Size(3), out]

    def quantize_rows(self) -> list[Argument]:
        sizes = [Size(TOKENS), Size(64, least=1), Choice(32, (-32, 0, 16, 33, 2**63 - 1))]
        records = Pointer(np.zeros((TOKENS, 2 * 48), np.uint8))
        return [self.pool, self.floats(TOKENS, 64), *sizes, records]

    def measure_int8_dot(self) -> list[Argument]:
        return [self.pool]

    def measure_read(self) -> list[Argument]:
        memory = Pointer(np.zeros(BLOCKS * PIECE_BYTES, np.uint8))
        sizes = [Size(PIECE_BYTES, least=1), Size(PIECE_BYTES, least=1)]
        return [self.pool, memory, *sizes, self.integers(1, 0), Size(2, least=1)]

    def kv_piece_bytes(self) -> list[Argument]:
        sizes = [Size(BLOCK_SIZE, least=1), Size(KV_HEADS, least=1), Size(DIM, least=1)]
        return [Choice(KV_INT8, (-1, 0, 99)), *sizes]

    def qkv_to_cache_int8(self) -> list[Argument]:
        fields = {"qkv": self.qkv()} | self.store_fields() | self.query_fields()
        return [self.pool, Struct(QkvToCacheTask, fields)]

    def paged_attention_int8(self) -> list[Argument]:
        fields = self.cache() | self.sequences() | self.query_fields()
        fields["out"] = self.floats(TOKENS, HEADS, DIM)
        return [self.pool, Struct(AttentionInt8Task, fields)]

    def attention_block_int8(self) -> list[Argument]:
        fields: dict[str, Argument] = {
            "x": self.floats(TOKENS, HIDDEN),
            "out": self.floats(TOKENS, HIDDEN),
            "norm": self.floats(HIDDEN),
            "qkv": self.packed((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            "qkv_bias": self.floats((HEADS + 2 * KV_HEADS) * DIM, is_optional=True),
            "output": self.packed(HIDDEN, HEADS * DIM),
            "output_bias": self.floats(HIDDEN, is_optional=True),
            "store": Struct(QkvToCacheTask, self.store_fields()),
            "attention": Struct(AttentionInt8Task, self.cache() | self.sequences()),
        }
        return [self.pool, Struct(AttentionBlockTask, fields)]

    def paged_attention_f32(self) -> list[Argument]:
        token = KV_HEADS * DIM
        fields: dict[str, Argument] = {
            "query": self.floats(TOKENS, HEADS, DIM),
            "out": self.floats(TOKENS, HEADS, DIM),
            "kv_cache": self.floats(BLOCKS, 2, BLOCK_SIZE, token),
            "block_stride": Size(2 * BLOCK_SIZE * token),
            "value_offset": Size(BLOCK_SIZE * token),
            "token_stride": Size(token),
            "positions": self.integers(4, 0, 1),
        }
        fields = self.cache() | self.sequences() | fields
        return [self.pool, Struct(AttentionTask, fields)]


# -- the test ------------------------------------------------------------------------------------

CANNOT_BE_WRONG = {"last_error", "available_isas", "isa", "measure_fma"}
FREES = {"pool_destroy"}
FUNCTIONS = sorted(
    {name.removeprefix("chairlift_") for name in SIGNATURES} - CANNOT_BE_WRONG - FREES
)


def as_passed(value: Any, wanted: Any) -> Any:
    """Structures by reference, and addresses as the pointer that the signature wants."""
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if isinstance(value, Misplaced):
        value = value.address
    return ctypes.cast(value, wanted) if hasattr(wanted, "contents") and value else value


def call(library: NativeLibrary, function: str, values: Sequence[Any]) -> Any:
    """The result, or True for a status that says all is well and 0 for one that does not."""
    native = getattr(library.functions, f"chairlift_{function}")
    result = native(*map(as_passed, values, native.argtypes))
    return result == 0 if native.restype is ctypes.c_int32 else result


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_bad_argument_is_refused(library: NativeLibrary, function: str) -> None:
    arguments: list[Argument] = getattr(Calls(library), function)()
    values = [value_of(argument) for argument in arguments]
    assert call(library, function, values), library.last_error
    accepted, silent = [], []
    for index, argument in enumerate(arguments):
        for what, value in faults(argument):
            name = f"argument {index} {what}"
            library.functions.chairlift_set_isa(b"a message from before")
            before = library.last_error
            if call(library, function, [*values[:index], value, *values[index + 1 :]]):
                accepted.append(name)
            elif library.last_error in (before, "") and not function.startswith("measure"):
                silent.append(name)
    assert (accepted, silent) == ([], [])


def test_a_pool_that_is_null_is_not_freed(library: NativeLibrary) -> None:
    library.functions.chairlift_pool_destroy(None)


def test_no_rows_are_no_mistake(library: NativeLibrary) -> None:
    """Not even as the first call of a thread, which has no memory of its own yet."""
    calls = Calls(library)
    x, out = calls.floats(1, 64), calls.floats(1, 48)
    values = [calls.pool, x, Plain(0), calls.packed(48, 64), Plain(None), Plain(None), out]
    accepted = []
    thread = threading.Thread(
        target=lambda: accepted.append(call(library, "linear_q8", [value_of(v) for v in values]))
    )
    thread.start()
    thread.join()
    assert accepted == [True]


def test_a_refusal_is_an_exception(library: NativeLibrary) -> None:
    pool = library.create_pool(1)
    with pytest.raises(ValueError, match="linear: a pointer is null"):
        library.check(library.functions.chairlift_linear_f32(pool, None, 1, None, None, 1, 1, None))
    with pytest.raises(ValueError, match="num_threads must be from 1 to 1024"):
        library.create_pool(0)
