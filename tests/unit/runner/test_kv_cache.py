"""Where keys and values lie, and that moving them between blocks loses no bit."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.core.kv_cache_manager import BlockMoves
from chairlift.errors import ConfigError
from chairlift.kernels.interface import KvBlockFormat
from chairlift.runner import kv_cache as kv_cache_module
from chairlift.runner.kv_cache import KVCache

BLOCK_SIZE = 4
TOKEN_BYTES = 3 * 2 * 2 * 8 * 4


def float_block(block_size: int = BLOCK_SIZE) -> KvBlockFormat:
    """Three layers of two heads of eight floats."""
    return KvBlockFormat(
        block_size=block_size,
        shape=(3, 2, block_size, 2, 8),
        dtype=np.dtype(np.float32),
        kv_dtype="float32",
    )


BYTE_BLOCK = KvBlockFormat(
    block_size=16, shape=(3, 1000), dtype=np.dtype(np.uint8), kv_dtype="int8"
)

MakeCache = Callable[[], KVCache]


@pytest.fixture(params=["memory", "file"])
def make_cache(request: pytest.FixtureRequest, tmp_path: Path) -> MakeCache:
    """make_cache() -> 6 blocks and 4 swapped ones, in memory or in a file."""
    swap_path = str(tmp_path) if request.param == "file" else None

    def make() -> KVCache:
        return KVCache(float_block(), num_blocks=6, num_swap_blocks=4, swap_path=swap_path)

    return make


def fill(cache: KVCache) -> NDArray[np.float32]:
    """Random bits, NaNs among them, in every block; a copy of them."""
    bits = np.random.default_rng(0).integers(0, 2**32, cache.blocks.shape, np.uint32)
    cache.blocks[:] = bits.view(np.float32)
    return cache.blocks.copy()


def assert_same_bits(one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def test_block_major_layout() -> None:
    cache = KVCache(float_block(), num_blocks=6)
    assert cache.blocks.shape == (6, 3, 2, BLOCK_SIZE, 2, 8)
    assert cache.blocks.flags.c_contiguous and cache.blocks.dtype == np.float32
    assert cache.block_bytes == cache.blocks[0].nbytes == BLOCK_SIZE * TOKEN_BYTES
    assert not cache.blocks.any(), "fresh pages are zero"


def test_swapped_blocks_come_back_bit_for_bit(make_cache: MakeCache) -> None:
    cache = make_cache()
    before = fill(cache)
    assert cache.swap_out([(5, 0), (1, 3), (2, 1)]) >= 0.0
    cache.blocks[:] = 0
    assert cache.swap_in([(0, 4), (3, 1), (1, 0)]) >= 0.0
    for target, source in ((4, 5), (1, 1), (0, 2)):
        assert_same_bits(cache.blocks[target], before[source])
    assert not cache.blocks[[2, 3, 5]].any(), "no other block was touched"


def test_moves_run_out_then_in_then_copies(make_cache: MakeCache) -> None:
    """A block may be swapped out, take another's content and be copied in one step."""
    cache = make_cache()
    cache.blocks[0] = 10
    cache.swap_out([(0, 2)])
    for block in range(6):
        cache.blocks[block] = block
    moves = BlockMoves(swap_outs=[(1, 0)], swap_ins=[(2, 1)], copies=[(1, 5)])
    out_s, in_s = cache.move(moves)
    assert out_s > 0 and in_s > 0
    cache.swap_in([(0, 3)])
    assert cache.blocks[:, 0, 0, 0, 0, 0].tolist() == [0, 10, 2, 1, 4, 10]


def test_blocks_of_bytes_move_as_wholes(tmp_path: Path) -> None:
    cache = KVCache(BYTE_BLOCK, num_blocks=3, num_swap_blocks=2, swap_path=str(tmp_path))
    assert cache.blocks.shape == (3, 3, 1000) and cache.blocks.dtype == np.uint8
    assert cache.block_bytes == 3000
    cache.blocks[:] = np.random.default_rng(1).integers(0, 256, cache.blocks.shape)
    before = cache.blocks.copy()
    cache.move(BlockMoves(swap_outs=[(0, 1)], swap_ins=[(1, 2)], copies=[(1, 0)]))
    np.testing.assert_array_equal(cache.blocks, before[[1, 1, 0]])


def test_no_moves_take_no_time(make_cache: MakeCache) -> None:
    assert make_cache().move(BlockMoves()) == (0.0, 0.0)


def test_the_swap_file_has_no_name_and_its_space_is_taken_at_once(tmp_path: Path) -> None:
    before = open_swap_files(tmp_path)
    cache = KVCache(float_block(16), num_blocks=1, num_swap_blocks=64, swap_path=str(tmp_path))
    assert list(tmp_path.iterdir()) == [], "nothing is left behind, even after kill -9"
    (file,) = open_swap_files(tmp_path) - before
    status = os.stat(f"/proc/self/fd/{file}")
    assert status.st_size == 64 * cache.block_bytes
    assert status.st_blocks * 512 >= status.st_size, "sparse: a later write could find a full disk"
    del cache
    assert open_swap_files(tmp_path) == before, "the space is given back"


def open_swap_files(folder: Path) -> set[str]:
    """File descriptors of this process on (deleted) files in `folder`."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc here")
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.add(link.name)
    return found


def test_a_missing_swap_folder_is_one_line_that_names_swap_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory") as caught:
        KVCache(
            float_block(16),
            num_blocks=1,
            num_swap_blocks=2,
            swap_path=str(tmp_path / "missing"),
        )
    assert caught.value.field == "swap_path"
    assert str(tmp_path / "missing") in str(caught.value) and "\n" not in str(caught.value)


def test_a_full_disk_is_one_line_that_names_swap_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(fd: int, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kv_cache_module.os, "posix_fallocate", no_space)
    with pytest.raises(ConfigError, match="No space left on device; set a smaller swap_space") as e:
        KVCache(float_block(16), num_blocks=1, num_swap_blocks=2, swap_path=str(tmp_path))
    assert e.value.field == "swap_path"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_really_too_small(tmp_path: Path) -> None:
    """Nothing mocked: more blocks than the disk has room for."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    block_bytes = 256 * TOKEN_BYTES
    with pytest.raises(ConfigError, match="swap_path"):
        KVCache(
            float_block(256),
            num_blocks=1,
            num_swap_blocks=100 * free // block_bytes + 1,
            swap_path=str(tmp_path),
        )


def test_memory_that_the_system_does_not_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(kv_cache_module, "map_private", refuse)
    with pytest.raises(ConfigError, match="set a smaller kv_cache_memory or swap_space") as caught:
        KVCache(float_block(16), num_blocks=1)
    assert caught.value.field == "kv_cache_memory"


def test_without_swap_space_nothing_is_reserved(tmp_path: Path) -> None:
    """Not even the folder is looked at."""
    cache = KVCache(float_block(16), num_blocks=1, swap_path=str(tmp_path / "missing"))
    assert cache.move(BlockMoves()) == (0.0, 0.0)


def test_memory_is_committed_only_as_blocks_are_written() -> None:
    num_blocks = 4 * 2**30 // (256 * TOKEN_BYTES)
    before = resident_bytes()
    cache = KVCache(float_block(256), num_blocks=num_blocks, num_swap_blocks=num_blocks)
    assert cache.blocks.nbytes > 4 * 2**30 - 2**20
    assert resident_bytes() - before < 64 * 2**20
    cache.blocks[: num_blocks // 64] = 1
    assert resident_bytes() - before < 64 * 2**20 + cache.blocks.nbytes // 64


@pytest.mark.parametrize("num_threads", [1, 3])
def test_memory_is_committed_at_once_if_asked_for(num_threads: int) -> None:
    cache = KVCache(float_block(16), num_blocks=200 * 2**20 // (16 * TOKEN_BYTES))
    before = resident_bytes()
    assert cache.preallocate(num_threads) > 0
    taken = resident_bytes() - before
    assert taken > 0.99 * cache.blocks.nbytes
    assert not cache.blocks.any()
    assert resident_bytes() - before < taken + 2**20, "reading what is there takes no more"


def test_the_smallest_cache_can_be_committed() -> None:
    cache = KVCache(float_block(), num_blocks=1)
    cache.preallocate(2)
    assert cache.blocks.shape[0] == 1 and not cache.blocks.any()


def resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        pytest.skip("no /proc here")
    return pages * mmap.PAGESIZE
