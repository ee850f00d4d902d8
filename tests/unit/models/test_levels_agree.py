"""Instruction sets that fuse a multiplication with an addition give equal bits for whole models.

So tokens do not depend on which of them a measurement chose.  Scalar kernels round twice and are
another matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from chairlift.kernels.cpu.library import LibraryUnavailableError, NativeLibrary, load_library
from unit.models.test_decoder import Types, logits_of, write_gguf


@pytest.fixture
def fused_isas() -> Iterator[tuple[NativeLibrary, list[str]]]:
    """The library, and every pair of levels but those with a scalar one."""
    try:
        library = load_library()
    except LibraryUnavailableError as error:
        pytest.skip(f"the native library is absent: {error}")
    before = library.isa
    pairs = product(library.levels("floats"), library.levels("bytes"))
    fused = [f"{floats}+{narrow}" for floats, narrow in pairs if "scalar" not in (floats, narrow)]
    if len(fused) < 2:
        pytest.skip("this machine has no two levels to compare")
    yield library, fused
    library.set_isa(before)


def check_equal_bits(path: Path, kernels: str, library: NativeLibrary, isas: list[str]) -> None:
    expected = None
    for isa in isas:
        library.set_isa(isa)
        logits = logits_of(path, kernels)
        expected = logits if expected is None else expected
        np.testing.assert_array_equal(logits, expected, err_msg=f"{isa} against {isas[0]}")


@pytest.mark.parametrize("kernels", ["native", "int8"])
@pytest.mark.parametrize("variant", ["llama3", "mistral", "qwen3", "llama_biases"])
def test_levels_give_equal_bits(
    tiny_folder: Callable[[str], Path],
    fused_isas: tuple[NativeLibrary, list[str]],
    variant: str,
    kernels: str,
) -> None:
    check_equal_bits(tiny_folder(variant), kernels, *fused_isas)


@pytest.mark.parametrize("kind", [Types.Q4_0, Types.Q4_1, Types.Q8_0])
def test_levels_give_equal_bits_on_packed_weights(
    tmp_path: Path, fused_isas: tuple[NativeLibrary, list[str]], kind: Types
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama3", kind)
    check_equal_bits(path, "int8", *fused_isas)
