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
from chairlift.kernels.interface import Kernels, QuantCompute
from chairlift.kernels.kv_dtype import ALIASES, FLOAT_STORAGE, KvDtype
from chairlift.kernels.reference import ReferenceKernels

BACKENDS = ("auto", "native", "int8", "reference")
PORTABLE_ISA = "scalar"

logger = logging.getLogger(__name__)


def create_kernels(
    name: str,
    num_threads: int,
    *,
    preferred: str = "native",
    kv_cache_dtype: str = "auto",
    quant_compute: str = "auto",
) -> Kernels:
    """The backend called `name`; "auto" is the `preferred` one where it loads, else numpy.

    `kv_cache_dtype` "auto" is int8 for the kernels of that name and float32 for the others;
    `quant_compute` "auto" is exact, and the others know no other.

    Raises:
        ConfigError: `name` is unknown, `num_threads` is below 1, the native library cannot be
            loaded, or the backend does not store keys and values or multiply so.
    """
    if name not in BACKENDS:
        raise ConfigError(
            f"unknown kernels {name!r}: choose one of {', '.join(BACKENDS)}", field="kernels"
        )
    if num_threads < 1:
        raise ConfigError(f"num_threads must be at least 1, not {num_threads}", field="num_threads")
    wanted = preferred if name == "auto" else name
    kv_dtype = choose_kv_dtype(wanted, kv_cache_dtype)
    compute = choose_quant_compute(wanted, quant_compute)
    if wanted == "reference":
        return ReferenceKernels(num_threads, kv_dtype)
    try:
        kernels = (
            NativeKernels(num_threads, kv_dtype)
            if compute is None
            else Int8Kernels(num_threads, kv_dtype, compute)
        )
    except LibraryUnavailableError as error:
        if name != "auto":
            raise ConfigError(f"the {name} kernels cannot be used: {error}", field="kernels") from (
                error
            )
        logger.warning("using the slow reference kernels: %s", error)
        return ReferenceKernels(num_threads, choose_kv_dtype("reference", kv_cache_dtype))
    _warn_without_vectors(kernels.library)
    return kernels


def _warn_without_vectors(library: NativeLibrary) -> None:
    if library.isa != PORTABLE_ISA:
        return
    has_others = library.available_isas[0] != PORTABLE_ISA
    reason = f"{ISA_VARIABLE} asks for it" if has_others else "this processor has none they know"
    logger.warning("kernels run without vector instructions, many times slower: %s", reason)


def choose_kv_dtype(kernels: str, asked: str) -> KvDtype:
    """What these kernels store keys and values as.

    Raises:
        ConfigError: `asked` is unknown, or they cannot.
    """
    own: KvDtype = "int8" if kernels == "int8" else "float32"
    if asked == "auto":
        return own
    name = ALIASES.get(asked, asked)
    offered: tuple[KvDtype, ...] = (*FLOAT_STORAGE, *(("int8",) if kernels == "int8" else ()))
    for choice in offered:
        if choice == name:
            return choice
    hint = ", or set kernels to int8" if name == "int8" else ""
    raise ConfigError(
        f"kernels={kernels} cannot have kv_cache_dtype={asked}: choose one of"
        f" {', '.join(offered)}{hint}",
        field="kv_cache_dtype",
    )


def choose_quant_compute(kernels: str, asked: str) -> QuantCompute | None:
    """How these kernels multiply quantised matrices; None: they do not.

    Raises:
        ConfigError: `asked` is unknown, or has no effect on them.
    """
    if kernels != "int8":
        if asked == "auto":
            return None
        raise ConfigError(
            f"quant_compute={asked} has no effect on kernels={kernels}: leave it out, or set"
            " kernels to int8",
            field="quant_compute",
        )
    if asked in ("auto", "exact"):
        return "exact"
    if asked == "fast":
        return "fast"
    raise ConfigError(
        f"quant_compute must be one of auto, exact, fast, not {asked!r}", field="quant_compute"
    )
