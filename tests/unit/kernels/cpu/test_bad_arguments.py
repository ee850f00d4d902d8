"""Every C function refuses every bad argument: nulls, misaligned pointers, sizes out of range, ids
of nothing.

One fault at a time is put into a call that works.  How much memory is behind a pointer is the
caller's word, so a size that is a little too large cannot be seen; sizes that no memory can hold,
and whose products would overflow, can.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.kernels.candidates import ROW_QUERY
from chairlift.kernels.cpu.block_tasks import AttentionBlockTask, BlockTask, MlpBlockTask
from chairlift.kernels.cpu.candidates import CandidatesTask
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, AttentionTask, KvToCacheTask, QkvToCacheTask
from chairlift.kernels.cpu.library import SIGNATURES, NativeLibrary
from chairlift.kernels.cpu.linear_q8 import GroupedWeightsStruct
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, KvDtype

NEGATIVE = (-1, -(2**63))
ABSURD = (2**48, 2**62, 2**63 - 1)
TOKENS, HEADS, KV_HEADS, DIM, HIDDEN = 3, 2, 1, 16, 64
BLOCK_SIZE, BLOCKS, VOCABULARY = 16, 2, 40


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
    wrong: tuple[tuple[int, ...], ...] = ()
    """What its first elements must not be."""


@dataclass(frozen=True)
class Records:
    """An array of structures, and what each field of the first must not be."""

    array: NDArray[Any]
    wrong: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Size:
    value: int
    least: int = 0
    may_be_absurd: bool = False
    wrong: tuple[int, ...] = ()
    """What it must not be either, beside the other arguments."""


@dataclass(frozen=True)
class Choice:
    value: Any
    wrong: tuple[Any, ...]


@dataclass(frozen=True)
class Struct:
    """A structure, passed by reference; fields that are left out are zero."""

    type: type[ctypes.Structure]
    fields: Mapping[str, Argument]


FLOAT_TYPE = Choice(0, (-1, 3))
"""Of weights: float32."""

Argument = Plain | Pool | Pointer | Records | Size | Choice | Struct


def value_of(argument: Argument) -> Any:
    if isinstance(argument, (Pointer, Records)):
        return argument.array.ctypes.data
    if isinstance(argument, Struct):
        return structure(argument, {})
    return argument.value


def structure(argument: Struct, faulty: Mapping[str, Any]) -> ctypes.Structure:
    types = dict(argument.type._fields_)
    values = {name: value_of(field) for name, field in argument.fields.items()}
    if "struct_size" in types:
        values["struct_size"] = ctypes.sizeof(argument.type)
    values |= faulty
    return argument.type(**{name: as_field(value, types[name]) for name, value in values.items()})


def as_field(value: Any, wanted: Any) -> Any:
    """Structures and addresses as the pointer that a field is."""
    if isinstance(value, np.ndarray):
        value = value.ctypes.data
    if not hasattr(wanted, "contents"):
        return value
    if isinstance(value, Misplaced):
        return ctypes.cast(value.address, wanted)
    return ctypes.pointer(value) if isinstance(value, ctypes.Structure) else value


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
        for values in argument.wrong:
            copy = argument.array.copy()
            copy.reshape(-1)[: len(values)] = values
            yield f"{values}", copy
    elif isinstance(argument, Records):
        yield "null", None
        yield "misaligned", argument.array.ctypes.data + 1
        for name, values in argument.wrong.items():
            for value in values:
                copy = argument.array.copy()
                copy[name][0] = value
                yield f"{name} {value}", copy
    elif isinstance(argument, Size):
        yield from ((str(value), value) for value in NEGATIVE)
        if not argument.may_be_absurd:
            yield from ((str(value), value) for value in ABSURD)
        if argument.least > 0:
            yield "0", 0
        yield from ((str(value), value) for value in argument.wrong)
    elif isinstance(argument, Choice):
        yield from ((str(value), value) for value in argument.wrong)
    elif isinstance(argument, Struct):
        yield "null", None
        yield "misaligned", misplace(structure(argument, {}))
        if "struct_size" in dict(argument.type._fields_):
            for size in (0, ctypes.sizeof(argument.type) - 8, ctypes.sizeof(argument.type) + 8):
                yield f"struct_size {size}", structure(argument, {"struct_size": size})
        for name, field in argument.fields.items():
            for what, value in faults(field):
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

    def integers(self, *values: int, wrong: tuple[tuple[int, ...], ...] = ()) -> Pointer:
        return Pointer(np.array(values, np.int32), wrong=wrong)

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
        return Pointer(packed, wrong=((0,), (2**64 - 1,)))

    def piece_bytes(self, kv_dtype: KvDtype) -> int:
        size: int = self.functions.chairlift_kv_piece_bytes(
            KV_TYPES[kv_dtype], BLOCK_SIZE, KV_HEADS, DIM
        )
        return size

    def memory(self, kv_dtype: KvDtype) -> Pointer:
        """Of a cache, in its numbers."""
        storage = np.dtype(np.uint8) if kv_dtype == "int8" else FLOAT_STORAGE[kv_dtype]
        size = self.piece_bytes(kv_dtype) // storage.itemsize
        return Pointer(np.zeros(BLOCKS * size, storage))

    def cache(self, kv_dtype: KvDtype) -> dict[str, Argument]:
        """What structures say of a cache, and of the heads in it."""
        return {
            "kv_type": Choice(KV_TYPES[kv_dtype], (-1, 0, 5, 2**31 - 1)),
            "block_stride": Size(
                self.piece_bytes(kv_dtype), wrong=(0, self.piece_bytes(kv_dtype) - 4)
            ),
            "num_blocks": Size(BLOCKS, wrong=(0, 1)),
            "num_tokens": Size(TOKENS),
            "block_size": Size(BLOCK_SIZE, least=1, wrong=(4,)),
            "num_heads": Size(HEADS, least=1),
            "num_kv_heads": Size(KV_HEADS, least=1, wrong=(3,)),
            "head_dim": Size(DIM, least=1, wrong=(17,) if kv_dtype == "int8" else ()),
        }

    def sequences(self) -> dict[str, Argument]:
        """Two: one new token after four in block 1, and two that are all there is in block 0."""
        return {
            "query_start": self.integers(
                *(0, 1, 3), wrong=((1,), (-1,), (0, -1), (0, 4), (0, 3, 1), (0, 1, 2), (0, 1, 4))
            ),
            "context_lens": self.integers(5, 2, wrong=((0,), (-1,), (17,), (2**31 - 1,), (5, 1))),
            "block_tables": self.integers(1, 0, wrong=((-1,), (2,), (1, 2**31 - 1), (1, -(2**31)))),
            "num_sequences": Size(2, wrong=(0, 1)),
            "max_blocks": Size(1, wrong=(0,)),
            "sliding_window": Size(0, may_be_absurd=True),
            "scale": Plain(0.25),
        }

    def slots(self) -> Pointer:
        end = BLOCKS * BLOCK_SIZE
        return Pointer(
            np.array([BLOCK_SIZE + 4, 0, 1], np.int64),
            wrong=((-1,), (end,), (0, 2**62), (0, 1, -(2**63))),
        )

    def norms(self) -> dict[str, Argument]:
        return {name: self.floats(DIM, is_optional=True) for name in ("q_norm", "k_norm")}

    def store_fields(self, kv_dtype: KvDtype) -> dict[str, Argument]:
        return self.cache(kv_dtype) | {
            "cos": self.floats(8, DIM // 2),
            "sin": self.floats(8, DIM // 2),
            "positions": self.integers(4, 0, 1, wrong=((-1,), (8,), (4, 2**31 - 1))),
            "slots": self.slots(),
            "max_position": Size(8, wrong=(0, 4)),
            "rope_dim": Size(DIM, wrong=(DIM - 1, DIM + 2)),
            "rope_interleaved": Plain(0),
            "norm_eps": Plain(1e-5),
        }

    def query_fields(self, kv_dtype: KvDtype) -> dict[str, Argument]:
        if kv_dtype != "int8":
            return {"query": self.floats(TOKENS, HEADS, DIM)}
        return {
            "query": Pointer(np.zeros((TOKENS, HEADS, DIM), np.int8)),
            "query_scales": self.floats(TOKENS, HEADS),
        }

    def candidates(self) -> Struct:
        """A list, a weight and edits for each of two rows."""
        queries = np.zeros(2, ROW_QUERY)
        queries["temperature"] = queries["repetition_penalty"] = queries["depth"] = 1
        queries["list_size"] = 2
        queries["wants_weight"] = 1
        queries["first_edit"], queries["first_penalty"] = (0, 2), (1, 3)
        queries["last_edit"] = (2, 4)
        wrong = {
            "temperature": (-1, np.nan, np.inf),
            "depth": (-1, np.nan),
            "list_size": (-1, 4, 2**31 - 1),
            "first_edit": (-1, 2, 2**62),
            "first_penalty": (-1, 3, 2**62),
            "last_edit": (-1, 0, 3, 5, 2**62),
        }
        fields: dict[str, Argument] = {
            "queries": Records(queries, wrong),
            "edit_ids": self.integers(
                *(0, 3, VOCABULARY - 1, 5), wrong=((-1,), (VOCABULARY,), (0, 2**31 - 1))
            ),
            "edit_values": self.floats(4),
            "num_edits": Size(4, wrong=(0, 3)),
            "max_listed": Size(3, wrong=(0, 1)),
            "found": Pointer(np.zeros((2, 96), np.uint64)),
            "listed_ids": Pointer(np.zeros((2, 3), np.int32)),
            "listed_logits": self.floats(2, 3),
        }
        return Struct(CandidatesTask, fields)

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
        return [self.pool, self.floats(33, 8), FLOAT_TYPE, *sizes, self.floats(64, 8)]

    def linear_f32(self) -> list[Argument]:
        sizes = [Size(33, least=1), Size(8, least=1)]
        bias = self.floats(33, is_optional=True)
        x, packed, out = self.floats(TOKENS, 8), self.floats(64, 8), self.floats(TOKENS, 33)
        return [self.pool, x, Size(TOKENS), packed, FLOAT_TYPE, bias, *sizes, out]

    def rows_f32(self) -> list[Argument]:
        ids = self.integers(0, 32, 5, wrong=((-1,), (33,)))
        sizes = [Size(33, least=1), Size(8, least=1)]
        out = self.floats(3, 8)
        return [self.pool, self.floats(64, 8), FLOAT_TYPE, *sizes, ids, Size(3), out]

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
        ids = self.integers(5, 0, 47, wrong=((-1,), (48,), (5, 2**31 - 1), (5, 0, -(2**31))))
        out = self.floats(3, 64)
        return [self.pool, self.packed(48, 64), ids, Size(3), out]

    def quantize_rows(self) -> list[Argument]:
        sizes = [Size(TOKENS), Size(64, least=1), Choice(32, (-32, 0, 16, 33, 2**63 - 1))]
        records = Pointer(np.zeros((TOKENS, 2 * 48), np.uint8))
        return [self.pool, self.floats(TOKENS, 64), *sizes, records]

    def measure_int8_dot(self) -> list[Argument]:
        return [self.pool]

    def levels(self) -> list[Argument]:
        return [Choice(0, (-1, 2, 2**31 - 1))]

    def measure_levels(self) -> list[Argument]:
        return [Choice(1, (-1, 2, 2**31 - 1)), Pointer(np.zeros(8))]

    def measure_read(self) -> list[Argument]:
        size = self.piece_bytes("int8")
        sizes = [Size(size, wrong=(0, size - 1)), Size(size, least=1, wrong=(size + 1,))]
        blocks = self.integers(1, 0, wrong=((-1,), (1, -(2**31))))
        return [self.pool, self.memory("int8"), *sizes, blocks, Size(2, least=1)]

    def kv_piece_bytes(self, kv_dtype: KvDtype) -> list[Argument]:
        sizes = [Size(BLOCK_SIZE, least=1), Size(KV_HEADS, least=1), Size(DIM, least=1)]
        return [Choice(KV_TYPES[kv_dtype], (-1, 0, 5, 2**31 - 1)), *sizes]

    def store_kv(self, kv_dtype: KvDtype) -> list[Argument]:
        fields = self.cache(kv_dtype) | {
            "key": self.floats(TOKENS, KV_HEADS, DIM),
            "value": self.floats(TOKENS, KV_HEADS, DIM),
            "key_stride": Choice(KV_HEADS * DIM, (*ABSURD, -(2**48), -(2**63))),
            "value_stride": Choice(KV_HEADS * DIM, (*ABSURD, -(2**48), -(2**63))),
            "slots": self.slots(),
            "kv_cache": self.memory(kv_dtype),
        }
        fields["num_kv_heads"] = Size(KV_HEADS, least=1)
        fields["kv_type"] = Choice(KV_TYPES[kv_dtype], (-1, 0, 1, 5, 2**31 - 1))
        del fields["num_heads"]
        return [self.pool, Struct(KvToCacheTask, fields)]

    def store_qkv(self, kv_dtype: KvDtype) -> list[Argument]:
        fields = self.store_fields(kv_dtype) | self.query_fields(kv_dtype) | self.norms()
        fields["qkv"] = self.floats(TOKENS, HEADS + 2 * KV_HEADS, DIM)
        fields["kv_cache"] = self.memory(kv_dtype)
        return [self.pool, Struct(QkvToCacheTask, fields)]

    def paged_attention(self, kv_dtype: KvDtype) -> list[Argument]:
        fields = self.cache(kv_dtype) | self.sequences() | self.query_fields(kv_dtype)
        fields["out"] = self.floats(TOKENS, HEADS, DIM)
        fields["kv_cache"] = self.memory(kv_dtype)
        return [self.pool, Struct(AttentionTask, fields)]

    def run_blocks(self, kind: str) -> list[Argument]:
        block = self.mlp_block() if kind == "mlp" else self.attention_block(kind)  # type: ignore[arg-type]
        name = "mlp" if kind == "mlp" else "attention"
        return [self.pool, Struct(BlockTask, {name: block}), Size(1)]

    def attention_block(self, kv_dtype: KvDtype) -> Struct:
        fields = self.norms() | {
            "x": self.floats(TOKENS, HIDDEN),
            "out": self.floats(TOKENS, HIDDEN),
            "norm": self.floats(HIDDEN),
            "qkv": self.packed((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            "qkv_bias": self.floats((HEADS + 2 * KV_HEADS) * DIM, is_optional=True),
            "output": self.packed(HIDDEN, HEADS * DIM),
            "output_bias": self.floats(HIDDEN, is_optional=True),
            "kv_cache": self.memory(kv_dtype),
            "store": Struct(QkvToCacheTask, self.store_fields(kv_dtype)),
            "attention": Struct(AttentionTask, self.cache(kv_dtype) | self.sequences()),
        }
        return Struct(AttentionBlockTask, fields)

    def mlp_block(self) -> Struct:
        fields: dict[str, Argument] = {
            "x": self.floats(TOKENS, HIDDEN),
            "out": self.floats(TOKENS, HIDDEN),
            "norm": self.floats(HIDDEN),
            "gate_up": self.packed(64, HIDDEN, interleave=16),
            "gate_up_bias": self.floats(64, is_optional=True),
            "down": self.packed(HIDDEN, 32),
            "down_bias": self.floats(HIDDEN, is_optional=True),
            "rows": Size(TOKENS),
            "eps": Plain(1e-5),
        }
        return Struct(MlpBlockTask, fields)

    def candidates_f32(self) -> list[Argument]:
        x, packed = self.floats(2, 8), self.floats(64, 8)
        bias = self.floats(VOCABULARY, is_optional=True)
        sizes = [Size(VOCABULARY, least=1), Size(8, least=1)]
        return [self.pool, x, Size(2), packed, FLOAT_TYPE, bias, *sizes, self.candidates()]

    def candidates_q8(self) -> list[Argument]:
        norm, bias = (self.floats(size, is_optional=True) for size in (64, VOCABULARY))
        head = [norm, Plain(1e-5), self.packed(VOCABULARY, 64), bias]
        return [self.pool, self.floats(2, 64), Size(2), *head, self.candidates()]


# -- the test ------------------------------------------------------------------------------------

CANNOT_BE_WRONG = {
    *("abi_version", "last_error", "available_isas", "isa", "processor", "measure_fma")
}
FREES = {"pool_destroy"}
FUNCTIONS = {name.removeprefix("chairlift_") for name in SIGNATURES} - CANNOT_BE_WRONG - FREES
CACHES = ("int8", "float16", "bfloat16", "float32")
VARIANTS = {
    "kv_piece_bytes": CACHES,
    "store_kv": CACHES[1:],
    "store_qkv": CACHES,
    "paged_attention": CACHES,
    "run_blocks": (*CACHES, "mlp"),
}
CASES = sorted((name, variant) for name in FUNCTIONS for variant in VARIANTS.get(name, ("",)))


def as_passed(value: Any, wanted: Any) -> Any:
    """Structures by reference, and addresses as the pointer that the signature wants."""
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if isinstance(value, Misplaced):
        value = value.address
    if isinstance(value, np.ndarray):
        value = value.ctypes.data
    return ctypes.cast(value, wanted) if hasattr(wanted, "contents") and value else value


def call(library: NativeLibrary, function: str, values: Sequence[Any]) -> Any:
    """The result, or True for a status that says all is well and 0 for one that does not."""
    native = getattr(library.functions, f"chairlift_{function}")
    result = native(*map(as_passed, values, native.argtypes))
    return result == 0 if native.restype is ctypes.c_int32 else result


def exported_names(library: NativeLibrary) -> set[str]:
    """C functions that the file has, without their prefix: names in it that the loader finds."""
    named = re.findall(rb"chairlift_(\w+)", library.path.read_bytes())
    names = {name.decode() for name in named}
    return {name for name in names if hasattr(library.functions, f"chairlift_{name}")}


def test_no_exported_function_is_left_out(library: NativeLibrary) -> None:
    assert exported_names(library) == FUNCTIONS | CANNOT_BE_WRONG | FREES
    assert all(callable(getattr(Calls, function, None)) for function in FUNCTIONS)
    takes_nothing = {
        name.removeprefix("chairlift_") for name, (_, wanted) in SIGNATURES.items() if not wanted
    }
    assert CANNOT_BE_WRONG - {"abi_version"} == takes_nothing


@pytest.mark.parametrize(("function", "variant"), CASES)
def test_every_bad_argument_is_refused(library: NativeLibrary, function: str, variant: str) -> None:
    make = getattr(Calls(library), function)
    arguments: list[Argument] = make(variant) if variant else make()
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
            elif library.last_error in (before, ""):
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
        linear = library.functions.chairlift_linear_f32
        library.check(linear(pool, None, 1, None, 0, None, 1, 1, None))
    with pytest.raises(ValueError, match="num_threads must be from 1 to 1024"):
        library.create_pool(0)
