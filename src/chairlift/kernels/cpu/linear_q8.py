"""Linear layers on bytes in the native library: packing grouped weights, and calling the ops."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.cpu.library import SIZE, NativeLibrary
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import FloatArray
from chairlift.kernels.reference_int8 import QuantizedRows
from chairlift.kernels.weight_memory import WeightMemory

GROUP_TAIL_BYTES = 16


class GroupedWeightsStruct(ctypes.Structure):
    """`chairlift_grouped_weights` of the C header, field by field."""

    _fields_ = (
        ("struct_size", SIZE),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("mins", ctypes.c_void_p),
        ("out_features", SIZE),
        ("in_features", SIZE),
        ("bits", ctypes.c_int32),
        ("group_size", ctypes.c_int32),
        ("interleave", ctypes.c_int32),
        ("per_channel", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLinear:
    """A matrix packed for `Q8Ops.linear`, and its bias."""

    packed: NDArray[np.uint8]
    bias: FloatArray | None
    in_features: int
    out_features: int
    interleave: int
    """Gates and ups in turn by so many rows; 0: an ordinary matrix."""

    @property
    def num_bytes(self) -> int:
        return self.packed.nbytes


class Q8Ops:
    """The ops on bytes of a loaded library, run by the threads of `pool`."""

    def __init__(self, library: NativeLibrary, pool: ctypes.c_void_p) -> None:
        self._library = library
        self._functions = library.functions
        self._pool = pool
        self._memory = WeightMemory()

    def pack(
        self,
        weights: GroupedWeights,
        bias: FloatArray | None = None,
        *,
        interleave: int = 0,
        per_channel: bool = False,
    ) -> QuantizedLinear:
        """Pack a matrix.

        Args:
            weights: stacked beforehand; with `interleave` all gates, then as many ups.
            bias: [out_features].
            interleave: 16 or 32 to alternate blocks of so many gates and ups, for `mlp`.
            per_channel: requantise to bytes with one scale per row, multiplied with activations in
                groups of 64: faster for many rows, a little less exact.

        Raises:
            ValueError: arrays do not fit each other, or the library refuses them.
        """
        num_groups = -(-weights.in_features // weights.group_size)
        codes = np.ascontiguousarray(weights.codes, np.uint8)
        scales = np.ascontiguousarray(weights.scales, np.float32)
        mins = np.ascontiguousarray(weights.mins, np.float32)
        if {scales.shape, mins.shape} != {(weights.out_features, num_groups)}:
            raise ValueError(
                f"scales {scales.shape} and mins {mins.shape} do not fit codes {codes.shape}"
                f" in groups of {weights.group_size}"
            )
        if codes.size and int(codes.max()) >> weights.bits:
            raise ValueError(f"codes must be below 2 ** {weights.bits}")
        if bias is not None:
            bias = np.ascontiguousarray(bias, np.float32)
            if bias.shape != (weights.out_features,):
                raise ValueError(f"bias {bias.shape} does not fit {weights.out_features} rows")
        description = GroupedWeightsStruct(
            struct_size=ctypes.sizeof(GroupedWeightsStruct),
            codes=codes.ctypes.data,
            scales=scales.ctypes.data,
            mins=mins.ctypes.data,
            out_features=weights.out_features,
            in_features=weights.in_features,
            bits=weights.bits,
            group_size=weights.group_size,
            interleave=interleave,
            per_channel=per_channel,
        )
        size = self._functions.chairlift_linear_q8_size(ctypes.byref(description))
        if size == 0:
            raise ValueError(self._library.last_error)
        packed = self._memory.take(size)
        self._library.check(
            self._functions.chairlift_linear_q8_pack(
                self._pool, ctypes.byref(description), packed.ctypes.data
            )
        )
        return QuantizedLinear(
            packed=packed,
            bias=bias,
            in_features=weights.in_features,
            out_features=weights.out_features,
            interleave=interleave,
        )

    def linear(
        self,
        x: FloatArray,
        weight: QuantizedLinear,
        residual: FloatArray | None = None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """q(x) W^T + bias + residual of [T, in]; [T, out], in `out` if given.

        `residual` may be `out`.
        """
        check_floats("x", x, (len(x), weight.in_features))
        result = aligned_empty(len(x), weight.out_features) if out is None else out
        check_floats("out", result, (len(x), weight.out_features))
        if residual is not None:
            check_floats("residual", residual, result.shape)
        self._library.check(
            self._functions.chairlift_linear_q8(
                self._pool,
                x.ctypes.data,
                len(x),
                weight.packed.ctypes.data,
                pointer(weight.bias),
                pointer(residual),
                result.ctypes.data,
            )
        )
        return result

    def mlp(
        self,
        x: FloatArray,
        gate_up: QuantizedLinear,
        down: QuantizedLinear,
        residual: FloatArray | None = None,
    ) -> FloatArray:
        """q(silu(gate) * up) W_down^T + residual of [T, in]; neither matrix has a bias."""
        if gate_up.bias is not None or down.bias is not None:
            raise ValueError("an MLP on bytes has no biases")
        check_floats("x", x, (len(x), gate_up.in_features))
        result = aligned_empty(len(x), down.out_features)
        if residual is not None:
            check_floats("residual", residual, result.shape)
        self._library.check(
            self._functions.chairlift_mlp_q8(
                self._pool,
                x.ctypes.data,
                len(x),
                gate_up.packed.ctypes.data,
                down.packed.ctypes.data,
                pointer(residual),
                result.ctypes.data,
            )
        )
        return result

    def quantise_rows(self, x: FloatArray, group_size: int = 32) -> QuantizedRows:
        """Groups of `group_size` (32 or 64) of each row of [T, K] to bytes."""
        check_floats("x", x, (len(x), x.shape[1]))
        num_rows, width = x.shape
        num_groups = -(-width // group_size)
        records = np.empty((num_rows, num_groups, group_size + GROUP_TAIL_BYTES), np.uint8)
        self._library.check(
            self._functions.chairlift_quantize_rows(
                self._pool, x.ctypes.data, num_rows, width, group_size, records.ctypes.data
            )
        )
        tail = np.ascontiguousarray(records[:, :, group_size:])
        integers = tail.view(np.int32)
        return QuantizedRows(
            codes=np.ascontiguousarray(records[:, :, :group_size])
            .view(np.int8)
            .reshape(num_rows, -1),
            scales=tail.view(np.float32)[:, :, 0],
            sums=integers[:, :, 2],
            first_half_sums=integers[:, :, 3],
        )

    def measure_int8_dot(self) -> float:
        """1e9 products of bytes per second that all threads reach together from registers."""
        rate: float = self._functions.chairlift_measure_int8_dot(self._pool)
        return rate


def as_quantised(linear: object) -> QuantizedLinear:
    """Raises TypeError if another backend prepared it."""
    if not isinstance(linear, QuantizedLinear):
        raise TypeError(f"this matrix was prepared by another backend: {type(linear).__name__}")
    return linear


def pointer(array: FloatArray | None) -> int | None:
    return None if array is None else array.ctypes.data


def check_floats(name: str, array: FloatArray, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `array` is dense float32 of `shape`."""
    if array.dtype != np.float32 or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be dense float32 {shape}, not {array.dtype} {array.shape}")
