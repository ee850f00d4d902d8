"""Where the native library is looked for, and what is said when it cannot be used."""

from __future__ import annotations

import ctypes
import gc
import re
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chairlift.errors import ConfigError
from chairlift.kernels.cpu import library as library_module
from chairlift.kernels.cpu.block_tasks import AttentionBlockTask, BlockTask, MlpBlockTask
from chairlift.kernels.cpu.kv_tasks import (
    KV_TYPES,
    AttentionTask,
    KvToCacheTask,
    QkvToCacheTask,
)
from chairlift.kernels.cpu.library import (
    FILE_NAME,
    ISA_VARIABLE,
    LIBRARY_VARIABLE,
    SIGNATURES,
    LibraryUnavailableError,
    NativeLibrary,
    find_library,
    load_library,
)
from chairlift.kernels.cpu.linear_q8 import GroupedWeightsStruct
from chairlift.kernels.cpu.ops import NativeKernels

HEADER = Path(__file__).parents[4] / "csrc" / "include" / "chairlift_kernels.h"


@pytest.fixture
def fresh_load() -> Iterator[None]:
    """`load_library` forgets what it loaded, before and after."""
    load_library.cache_clear()
    yield
    load_library.cache_clear()


def test_the_named_file_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "named.so"
    named.touch()
    monkeypatch.setenv(LIBRARY_VARIABLE, str(named))
    assert find_library() == named


def test_a_named_file_that_is_absent_is_no_reason_to_look_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(
        LibraryUnavailableError, match=r"CHAIRLIFT_LIBRARY=.*none\.so is not a file"
    ):
        find_library()


def test_folders_are_searched_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    folders = [tmp_path / name for name in ("empty", "package", "build")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(library_module, "library_folders", lambda: folders)
    with pytest.raises(LibraryUnavailableError, match=r"was not built .* C\+\+17 compiler"):
        find_library()
    (folders[2] / FILE_NAME).touch()
    assert find_library() == folders[2] / FILE_NAME
    (folders[1] / FILE_NAME).touch()
    assert find_library() == folders[1] / FILE_NAME


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a library")
    with pytest.raises(LibraryUnavailableError, match="does not load"):
        NativeLibrary(path)


def test_a_library_of_another_version(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "ABI_VERSION", 999)
    with pytest.raises(LibraryUnavailableError, match="this package needs 999: build it again"):
        NativeLibrary(library.path)


def test_isa_from_the_environment(
    library: NativeLibrary, fresh_load: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "scalar")
    assert load_library().isa == "scalar"


def test_an_isa_that_the_machine_lacks(
    library: NativeLibrary, fresh_load: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "sparc")
    with pytest.raises(ConfigError, match=r"cannot run instruction set 'sparc'; it has: .*scalar"):
        load_library()


def test_an_isa_of_bytes_that_are_no_text(library: NativeLibrary) -> None:
    with pytest.raises(ConfigError, match=r"cannot run instruction set 'avx2\?'"):
        library.set_isa("avx2\udcff")


def test_auto_is_the_best_isa(library: NativeLibrary) -> None:
    library.set_isa("scalar")
    library.set_isa("auto")
    assert library.isa == library.available_isas[0]
    assert library.available_isas[-1] == "scalar"


@pytest.mark.skipif(not HEADER.is_file(), reason="the C header is in the source tree only")
def test_every_function_of_the_header_is_bound() -> None:
    declared = re.findall(r"^CHAIRLIFT_API .*?(chairlift_\w+)\(", HEADER.read_text(), re.M)
    assert sorted(declared) == sorted({*SIGNATURES, "chairlift_abi_version"})


@pytest.mark.skipif(not HEADER.is_file(), reason="the C header is in the source tree only")
@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("kv_to_cache", KvToCacheTask),
        ("qkv_to_cache", QkvToCacheTask),
        ("attention", AttentionTask),
        ("attention_block", AttentionBlockTask),
        ("mlp_block", MlpBlockTask),
        ("block", BlockTask),
        ("grouped_weights", GroupedWeightsStruct),
    ],
)
def test_the_bound_structures_have_the_header_s_fields(
    name: str, structure: type[ctypes.Structure]
) -> None:
    body = re.search(rf"typedef struct chairlift_{name} \{{(.*?)\}}", HEADER.read_text(), re.S)
    assert body is not None
    code = re.sub(r"//.*", "", body[1])
    declared = re.findall(r"([\w ]+?)(\*?) ?(\w+);", code)
    assert [field for _, _, field in declared] == [item[0] for item in structure._fields_]
    sizes = {"int64_t": 8, "int32_t": 4, "float": 4}
    for (kind, is_pointer, field), item in zip(declared, structure._fields_, strict=True):
        wanted = 8 if is_pointer else sizes.get(kind.split()[-1])
        assert wanted in (None, ctypes.sizeof(item[1])), field


@pytest.mark.skipif(not HEADER.is_file(), reason="the C header is in the source tree only")
def test_constants_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    kinds = re.findall(r"#define CHAIRLIFT_KV_(\w+) (\d+)", text)
    assert {name.lower(): int(value) for name, value in kinds} == KV_TYPES
    version = re.search(r"CHAIRLIFT_ABI_VERSION (\d+)", HEADER.read_text())
    assert version is not None and int(version[1]) == library_module.ABI_VERSION


def test_a_pool_lives_as_long_as_its_handle_and_no_longer(library: NativeLibrary) -> None:
    """Ops that outlive the backend they came from must not use a freed pool."""
    kernels = NativeKernels(2)
    pool = kernels.pool
    alive = weakref.ref(pool)
    del kernels
    gc.collect()
    weight = np.ones((32, 4), np.float32)
    packed = np.empty(library.functions.chairlift_linear_f32_size(32, 4), np.float32)
    library.check(
        library.functions.chairlift_linear_f32_pack(
            pool, weight.ctypes.data, 0, 32, 4, packed.ctypes.data
        )
    )
    assert packed.sum() == weight.sum()
    del pool
    gc.collect()
    assert alive() is None
