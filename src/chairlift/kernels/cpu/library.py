"""Find, load and check the native library.  Knows its C signatures; computes nothing.

Places searched, in this order, and the first that exists must load:

1. the file that the environment variable `CHAIRLIFT_LIBRARY` names,
2. next to this file, where an installed wheel has it,
3. `build/` of a source checkout, where `cmake -S . -B build && cmake --build build` puts it.

`CHAIRLIFT_ISA` (scalar, avx2, avx2_vnni, avx512, or FLOATS+BYTES) pins the instruction set;
otherwise a measurement chooses, see `kernels/cpu/arithmetic.py`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from functools import cache
from pathlib import Path

import chairlift.kernels.cpu
from chairlift.cache_folder import CACHE_VARIABLE, cache_folder
from chairlift.errors import ConfigError, ModelSourceError
from chairlift.kernels.cpu.arithmetic import KINDS, Arithmetic, choose_arithmetic

LIBRARY_VARIABLE = "CHAIRLIFT_LIBRARY"
ISA_VARIABLE = "CHAIRLIFT_ISA"

ABI_VERSION = 1
STEM = "libchairlift_kernels"
SUFFIXES = {"win32": ".dll", "darwin": ".dylib"}
FILE_NAME = STEM + SUFFIXES.get(sys.platform, ".so")

OUT_OF_MEMORY = 3

FLOATS = ctypes.c_void_p
SIZE = ctypes.c_int64


class LibraryUnavailableError(RuntimeError):
    """The native library cannot be used here.  The message says why, in one line."""


SIGNATURES = {
    "chairlift_last_error": (ctypes.c_char_p, ()),
    "chairlift_available_isas": (ctypes.c_char_p, ()),
    "chairlift_isa": (ctypes.c_char_p, ()),
    "chairlift_set_isa": (ctypes.c_int32, (ctypes.c_char_p,)),
    "chairlift_levels": (ctypes.c_char_p, (ctypes.c_int32,)),
    "chairlift_measure_levels": (ctypes.c_int32, (ctypes.c_int32, ctypes.c_void_p)),
    "chairlift_processor": (ctypes.c_char_p, ()),
    "chairlift_measure_fma": (ctypes.c_double, ()),
    "chairlift_pool_create": (
        ctypes.c_int32,
        (ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
    ),
    "chairlift_pool_destroy": (None, (ctypes.c_void_p,)),
    "chairlift_linear_f32_size": (SIZE, (SIZE, SIZE)),
    "chairlift_linear_f32_pack": (
        ctypes.c_int32,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, SIZE, SIZE, ctypes.c_void_p),
    ),
    "chairlift_rows_f32": (
        ctypes.c_int32,
        (
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, SIZE, SIZE),
            *(ctypes.c_void_p, SIZE, FLOATS),
        ),
    ),
    "chairlift_linear_f32": (
        ctypes.c_int32,
        (
            *(ctypes.c_void_p, FLOATS, SIZE, ctypes.c_void_p, ctypes.c_int32),
            *(FLOATS, SIZE, SIZE, FLOATS),
        ),
    ),
    "chairlift_linear_q8_size": (SIZE, (ctypes.c_void_p,)),
    "chairlift_linear_q8_pack": (
        ctypes.c_int32,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    ),
    "chairlift_linear_q8": (
        ctypes.c_int32,
        (ctypes.c_void_p, FLOATS, SIZE, ctypes.c_void_p, FLOATS, FLOATS, FLOATS),
    ),
    "chairlift_mlp_q8": (
        ctypes.c_int32,
        (ctypes.c_void_p, FLOATS, SIZE, ctypes.c_void_p, ctypes.c_void_p, FLOATS, FLOATS),
    ),
    "chairlift_norm_linear_q8": (
        ctypes.c_int32,
        (
            *(ctypes.c_void_p, FLOATS, SIZE, FLOATS, ctypes.c_float),
            *(ctypes.c_void_p, FLOATS, FLOATS, FLOATS),
        ),
    ),
    "chairlift_norm_mlp_q8": (
        ctypes.c_int32,
        (
            *(ctypes.c_void_p, FLOATS, SIZE, FLOATS, ctypes.c_float),
            *(ctypes.c_void_p, FLOATS, ctypes.c_void_p, FLOATS, FLOATS, FLOATS),
        ),
    ),
    "chairlift_rows_q8": (
        ctypes.c_int32,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, SIZE, FLOATS),
    ),
    "chairlift_run_blocks": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p, SIZE)),
    "chairlift_candidates_f32": (
        ctypes.c_int32,
        (
            *(ctypes.c_void_p, FLOATS, SIZE, ctypes.c_void_p, ctypes.c_int32),
            *(FLOATS, SIZE, SIZE, ctypes.c_void_p),
        ),
    ),
    "chairlift_candidates_q8": (
        ctypes.c_int32,
        (
            *(ctypes.c_void_p, FLOATS, SIZE, FLOATS, ctypes.c_float),
            *(ctypes.c_void_p, FLOATS, ctypes.c_void_p),
        ),
    ),
    "chairlift_quantize_rows": (
        ctypes.c_int32,
        (ctypes.c_void_p, FLOATS, SIZE, SIZE, SIZE, ctypes.c_void_p),
    ),
    "chairlift_measure_int8_dot": (ctypes.c_double, (ctypes.c_void_p,)),
    "chairlift_kv_piece_bytes": (SIZE, (ctypes.c_int32, SIZE, SIZE, SIZE)),
    "chairlift_store_kv": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p)),
    "chairlift_store_qkv": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p)),
    "chairlift_paged_attention": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p)),
    "chairlift_measure_read": (
        ctypes.c_double,
        (ctypes.c_void_p, ctypes.c_void_p, SIZE, SIZE, ctypes.c_void_p, SIZE),
    ),
}


class _PoolHandle(ctypes.c_void_p):
    """A pool's address.  Whoever may use the pool holds the handle, so the pool outlives them."""


class NativeLibrary:
    """The loaded library: its functions as attributes, its failures as exceptions."""

    def __init__(self, path: Path) -> None:
        """Raises LibraryUnavailableError if the file is no library or one of another version."""
        try:
            functions = ctypes.CDLL(str(path))
            version = functions.chairlift_abi_version()
            if version != ABI_VERSION:
                raise LibraryUnavailableError(
                    f"{path} has interface version {version}, this package needs {ABI_VERSION}:"
                    " build it again"
                )
            for name, (result, arguments) in SIGNATURES.items():
                function = getattr(functions, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise LibraryUnavailableError(f"{path} does not load: {error}") from error
        self.path = path
        self.functions = functions
        self.arithmetic = Arithmetic(isa=self.isa, source="widest")
        """Why it is this instruction set, if it is the one that `load_library` chose."""

    @property
    def available_isas(self) -> tuple[str, ...]:
        """Instruction sets that this machine can run, widest first."""
        names: bytes = self.functions.chairlift_available_isas()
        return tuple(names.decode().split(","))

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        name: bytes = self.functions.chairlift_isa()
        return name.decode()

    def set_isa(self, name: str) -> None:
        """Use another instruction set in the whole process; "auto" is the widest one.

        Raises:
            ConfigError: this machine cannot run it.
        """
        if self.functions.chairlift_set_isa(name.encode(errors="replace")) != 0:
            raise ConfigError(self.last_error, field=ISA_VARIABLE)

    @property
    def processor(self) -> str:
        """What decides which levels it has and how fast they are; "" if it cannot be asked."""
        name: bytes = self.functions.chairlift_processor()
        return name.decode("ascii", "replace")

    def levels(self, kind: str) -> tuple[str, ...]:
        """Levels of a kind of arithmetic that this machine can run, widest first."""
        names: bytes = self.functions.chairlift_levels(KINDS.index(kind))
        return tuple(names.decode().split(","))

    def measure_levels(self, kind: str) -> dict[str, float]:
        """1e9 multiply-adds per second of this thread at each level.  Takes milliseconds."""
        levels = self.levels(kind)
        rates = (ctypes.c_double * len(levels))()
        self.check(self.functions.chairlift_measure_levels(KINDS.index(kind), rates))
        return dict(zip(levels, rates, strict=True))

    def create_pool(self, num_threads: int) -> ctypes.c_void_p:
        """A pool of threads, the calling one included, that lives as long as this handle."""
        pool = _PoolHandle()
        self.check(self.functions.chairlift_pool_create(num_threads, ctypes.byref(pool)))
        weakref.finalize(pool, self.functions.chairlift_pool_destroy, ctypes.c_void_p(pool.value))
        return pool

    @property
    def last_error(self) -> str:
        """What the last failed call of this thread said."""
        message: bytes = self.functions.chairlift_last_error()
        return message.decode()

    def check(self, status: int) -> None:
        """Raise what a failed call's status stands for."""
        if status == 0:
            return
        if status == OUT_OF_MEMORY:
            raise MemoryError(self.last_error)
        raise ValueError(self.last_error)


@cache
def load_library() -> NativeLibrary:
    """The native library, loaded once per process.

    Raises:
        LibraryUnavailableError: it is nowhere, or what is there does not load.
        ConfigError: `CHAIRLIFT_ISA` names an instruction set that this machine lacks.
        ModelSourceError: `CHAIRLIFT_CACHE` is no folder.
    """
    library = NativeLibrary(find_library())
    forced = os.environ.get(ISA_VARIABLE)
    if forced and forced != "auto":
        library.set_isa(forced)
        library.arithmetic = Arithmetic(isa=library.isa, source="forced")
    else:
        library.arithmetic = choose_arithmetic(library, _folder_of_measurements())
        library.set_isa(library.arithmetic.isa)
    return library


def _folder_of_measurements() -> Path | None:
    """The cache folder; None if this user has none."""
    try:
        return cache_folder()
    except ModelSourceError:
        if os.environ.get(CACHE_VARIABLE):
            raise
        return None


def find_library() -> Path:
    """The first existing file of the places in the module's docstring.

    Raises:
        LibraryUnavailableError: there is none.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise LibraryUnavailableError(f"{LIBRARY_VARIABLE}={named} is not a file")
        return Path(named)
    for folder in library_folders():
        path = folder / FILE_NAME
        if path.is_file():
            return path
    raise LibraryUnavailableError(
        f"{FILE_NAME} was not built with this package: install a C++17 compiler and CMake, then"
        " install Chairlift again"
    )


def library_folders() -> list[Path]:
    """The package's own folders (an editable install has two) and a checkout's build folder."""
    folders = [Path(folder) for folder in chairlift.kernels.cpu.__path__]
    checkout = Path(__file__).resolve().parents[4]
    if (checkout / "csrc" / "include" / "chairlift_kernels.h").is_file():
        folders.append(checkout / "build")
    return folders
