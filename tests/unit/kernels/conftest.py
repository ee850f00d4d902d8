"""The backends under test: numpy, and the native library at every level this machine can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chairlift.kernels.cpu.library import LibraryUnavailableError, NativeLibrary, load_library
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import Kernels
from chairlift.kernels.reference import ReferenceKernels

ISAS = ("scalar", "avx2", "avx2_vnni", "avx512")

MakeKernels = Callable[[int], Kernels]


@pytest.fixture
def library() -> Iterator[NativeLibrary]:
    """The native library, back at the instruction set it had when the test ends."""
    try:
        loaded = load_library()
    except LibraryUnavailableError as error:
        pytest.skip(f"the native library is absent: {error}")
    before = loaded.isa
    yield loaded
    loaded.set_isa(before)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, library: NativeLibrary) -> str:
    """Each instruction set in turn, in use."""
    name: str = request.param
    if name not in library.available_isas:
        pytest.skip(f"this machine cannot run {name}")
    library.set_isa(name)
    return name


@pytest.fixture
def native(isa: str) -> NativeKernels:
    """The native backend on two threads, at each instruction set."""
    return NativeKernels(2)


@pytest.fixture(params=("reference", *ISAS))
def make_kernels(request: pytest.FixtureRequest) -> MakeKernels:
    """make_kernels(num_threads) -> each backend in turn."""
    name: str = request.param
    if name == "reference":
        return ReferenceKernels
    loaded: NativeLibrary = request.getfixturevalue("library")
    if name not in loaded.available_isas:
        pytest.skip(f"this machine cannot run {name}")
    loaded.set_isa(name)
    return NativeKernels


@pytest.fixture
def kernels(make_kernels: MakeKernels) -> Kernels:
    """Each backend on two threads."""
    return make_kernels(2)
