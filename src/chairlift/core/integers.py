"""Integer arithmetic that several files of this room need."""

from __future__ import annotations


def cdiv(numerator: int, denominator: int) -> int:
    """Quotient rounded up."""
    return -(-numerator // denominator)
