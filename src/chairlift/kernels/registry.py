"""Backend names to backends.  Knows how to fall back, and says so once."""

from __future__ import annotations

import logging

from chairlift.errors import ConfigError
from chairlift.kernels.cpu.int8 import Int8Kernels
from chairlift.kernels.cpu.library import (
    ISA_VARIABLE,
    LibraryUnavailableError,
    NativeLibrary,
)
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import Kernels
from chairlift.kernels.reference import ReferenceKernels

BACKENDS = ("auto", "native", "int8", "reference")
PORTABLE_ISA = "scalar"

logger = logging.getLogger(__name__)


def create_kernels(name: str, num_threads: int) -> Kernels:
    """The backend called `name`; "auto" is the native library where it loads, else numpy.

    Raises:
        ConfigError: `name` is unknown, `num_threads` is below 1, or the native library
            cannot be loaded.
    """
    if name not in BACKENDS:
        raise ConfigError(
            f"unknown kernels {name!r}: choose one of {', '.join(BACKENDS)}", field="kernels"
        )
    if num_threads < 1:
        raise ConfigError(f"num_threads must be at least 1, not {num_threads}", field="num_threads")
    if name == "reference":
        return ReferenceKernels(num_threads)
    try:
        kernels = Int8Kernels(num_threads) if name == "int8" else NativeKernels(num_threads)
    except LibraryUnavailableError as error:
        if name != "auto":
            raise ConfigError(f"the {name} kernels cannot be used: {error}", field="kernels") from (
                error
            )
        logger.warning("using the slow reference kernels: %s", error)
        return ReferenceKernels(num_threads)
    _warn_without_vectors(kernels.library)
    return kernels


def _warn_without_vectors(library: NativeLibrary) -> None:
    if library.isa != PORTABLE_ISA:
        return
    has_others = library.available_isas[0] != PORTABLE_ISA
    reason = f"{ISA_VARIABLE} asks for it" if has_others else "this processor has none they know"
    logger.warning("kernels run without vector instructions, many times slower: %s", reason)
