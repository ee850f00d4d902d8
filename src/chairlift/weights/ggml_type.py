"""The tensor types of GGUF files: their numbers and the size of their blocks.

A tensor's last axis is cut into blocks of `block_size` elements, each stored in `block_bytes`
bytes.  How the bits of a block are read is the business of `chairlift.weights.dequantize`.
"""

from __future__ import annotations

from enum import IntEnum


class GGMLType(IntEnum):
    """A tensor type that we can read; the value is the number that GGUF files store."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30

    @property
    def block_size(self) -> int:
        """Elements in one block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _BLOCKS[self][1]


_BLOCKS: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.BF16: (1, 2),
    GGMLType.Q4_0: (32, 18),
    GGMLType.Q4_1: (32, 20),
    GGMLType.Q5_0: (32, 22),
    GGMLType.Q5_1: (32, 24),
    GGMLType.Q8_0: (32, 34),
    GGMLType.IQ4_NL: (32, 18),
    GGMLType.Q2_K: (256, 84),
    GGMLType.Q3_K: (256, 110),
    GGMLType.Q4_K: (256, 144),
    GGMLType.Q5_K: (256, 176),
    GGMLType.Q6_K: (256, 210),
    GGMLType.IQ4_XS: (256, 136),
}

_UNSUPPORTED_NAMES: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


def type_name(number: int) -> str:
    """The name of type `number`, whether we can read it or not; `#number` for a stranger."""
    try:
        return GGMLType(number).name
    except ValueError:
        return _UNSUPPORTED_NAMES.get(number, f"#{number}")
