"""Hostile GGUF headers: each is refused in one line, at once, and without memory."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.cache_folder import cache_folder
from chairlift.errors import ModelFileError
from chairlift.weights.dequantize import dequantize
from chairlift.weights.gguf import GGUFFile
from chairlift.weights.model_source import DEFAULT_MODEL, WHEELS
from chairlift.weights.pinned_wheel import cached_path, is_cached

WriteGGUF = Callable[..., Path]
HUGE = 2**60


def string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def header(*, version: int = 3, num_tensors: int = 0, num_keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def u32_key(key: str, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


def tensor(
    name: str | bytes = "t", *, dims: tuple[int, ...] = (8,), type: int = 0, offset: int = 0
) -> bytes:
    return (
        string(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", type, offset)
    )


def array(key: str, type: int, count: int) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, type, count)


PAD = b"\0" * 4096

HOSTILE = {
    "magic": (b"GGUX" + PAD, "not a GGUF file"),
    "old_ggml": (b"tjgg" + PAD, "before GGUF"),
    "version_1": (header(version=1) + PAD, "version 1 is not supported"),
    "version_4": (header(version=4) + PAD, "version 4 is not supported"),
    "version_0": (header(version=0) + PAD, "version 0 is not supported"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + PAD, "big-endian"),
    "keys_2_60": (header(num_keys=HUGE) + PAD, f"claims {HUGE} metadata keys"),
    "tensors_2_60": (header(num_tensors=HUGE) + PAD, f"claims {HUGE} tensors"),
    "keys_beyond_file": (header(num_keys=400) + PAD, "do not fit"),
    "tensors_beyond_file": (header(num_tensors=400) + PAD, "do not fit"),
    "key_2_60": (header(num_keys=1) + struct.pack("<Q", HUGE) + PAD, "claims 1152921504606846976"),
    "key_5000": (header(num_keys=1) + struct.pack("<Q", 5000) + PAD * 2, "claims 5000 bytes"),
    "key_not_utf8": (header(num_keys=1) + string(b"\xff") + PAD, "not valid UTF-8"),
    "key_twice": (
        header(num_keys=2) + u32_key("a", 1) + u32_key("a", 2) + PAD,
        "'a' appears twice",
    ),
    "value_type": (header(num_keys=1) + string("a") + struct.pack("<I", 13) + PAD, "value type 13"),
    "string_2_60": (
        header(num_keys=1) + string("a") + struct.pack("<IQ", 8, HUGE) + PAD,
        "claims a string",
    ),
    "string_beyond_file": (
        header(num_keys=1) + string("a") + struct.pack("<IQ", 8, 5000) + PAD,
        "cut or its header lies",
    ),
    "numbers_2_60": (header(num_keys=1) + array("a", 4, HUGE) + PAD, "claims an array"),
    "numbers_beyond_file": (header(num_keys=1) + array("a", 4, 5000) + PAD, "cut or its header"),
    "strings_2_60": (header(num_keys=1) + array("a", 8, HUGE) + PAD, "claims an array"),
    "strings_2_64": (header(num_keys=1) + array("a", 8, 2**64 - 1) + PAD, "claims an array"),
    "strings_beyond_file": (header(num_keys=1) + array("a", 8, 513) + PAD, "cut or its header"),
    "string_in_array_2_60": (
        header(num_keys=1) + array("a", 8, 2) + struct.pack("<Q", HUGE) + PAD,
        "cut or its header lies",
    ),
    "array_type": (header(num_keys=1) + array("a", 77, 1) + PAD, "value type 77"),
    "nested_array": (header(num_keys=1) + array("a", 9, 1) + PAD, "array of arrays"),
    "alignment_0": (header(num_keys=1) + u32_key("general.alignment", 0) + PAD, "power of two"),
    "alignment_24": (header(num_keys=1) + u32_key("general.alignment", 24) + PAD, "power of two"),
    "alignment_4": (header(num_keys=1) + u32_key("general.alignment", 4) + PAD, "power of two"),
    "alignment_2_30": (
        header(num_keys=1) + u32_key("general.alignment", 2**30) + PAD,
        "power of two",
    ),
    "alignment_string": (
        header(num_keys=1)
        + string("general.alignment")
        + struct.pack("<I", 8)
        + string("32")
        + PAD,
        "power of two",
    ),
    "dims_0": (header(num_tensors=1) + tensor(dims=()) + PAD, "has 0 dimensions"),
    "dims_5": (header(num_tensors=1) + tensor(dims=(1,) * 5) + PAD, "has 5 dimensions"),
    "dims_2_32": (
        header(num_tensors=1) + string("t") + struct.pack("<I", 2**32 - 1) + PAD,
        "has 4294967295 dimensions",
    ),
    "dim_0": (header(num_tensors=1) + tensor(dims=(8, 0)) + PAD, "impossible dimensions"),
    "dim_2_60": (header(num_tensors=1) + tensor(dims=(HUGE,)) + PAD, "impossible dimensions"),
    "dims_that_wrap": (header(num_tensors=1) + tensor(dims=(2**31,) * 4) + PAD, "needs bytes"),
    "iq2_xxs": (
        header(num_tensors=1) + tensor(dims=(256,), type=16) + PAD,
        "block type IQ2_XXS is not supported",
    ),
    "mxfp4": (
        header(num_tensors=1) + tensor(dims=(32,), type=39) + PAD,
        "block type MXFP4 is not supported",
    ),
    "type_stranger": (header(num_tensors=1) + tensor(type=999) + PAD, "block type #999"),
    "part_of_a_block": (
        header(num_tensors=1) + tensor(dims=(33,), type=8) + PAD,
        "rows of 33 do not divide into Q8_0 blocks of 32",
    ),
    "offset_2_60": (header(num_tensors=1) + tensor(offset=HUGE) + PAD, "needs bytes"),
    "offset_misaligned": (header(num_tensors=1) + tensor(offset=4) + PAD, "not aligned to 32"),
    "name_long": (header(num_tensors=1) + tensor("t" * 257) + PAD, "claims 257 bytes"),
    "name_not_utf8": (header(num_tensors=1) + tensor(b"\xc3") + PAD, "not valid UTF-8"),
    "name_twice": (header(num_tensors=2) + tensor() + tensor(offset=32) + PAD, "'t' appears twice"),
    "overlap_same": (
        header(num_tensors=2) + tensor("a") + tensor("b") + PAD,
        "'a' and 'b' overlap",
    ),
    "overlap_tail": (
        header(num_tensors=2) + tensor("b", offset=32) + tensor("a", dims=(9,)) + PAD,
        "'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_lying_header_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    content, expected = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    started = time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    assert time.perf_counter() - started < 1
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert message.isprintable()


def test_neighbouring_tensors_do_not_overlap(tmp_path: Path) -> None:
    path = tmp_path / "fine.gguf"
    path.write_bytes(header(num_tensors=2) + tensor("b", offset=32) + tensor("a") + PAD)
    with GGUFFile.open(path) as file:
        assert file.tensors.keys() == {"a", "b"}


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(header(num_tensors=1) + tensor("\x1b[2J\n\u202e", type=999) + PAD)
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    assert str(caught.value).isprintable()


def test_every_cut_of_a_real_file_is_refused(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    content = path.read_bytes()
    with GGUFFile.open(path) as file:
        used = max(t._offset + t.num_bytes for t in file.tensors.values())
    for length in range(used):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)
    path.write_bytes(content[:used])
    GGUFFile.open(path).close()


NUMBERS = [0, 1, 7, 31, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]
MUTATION = st.one_of(
    st.tuples(st.just("byte"), st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
    st.tuples(st.just("u32"), st.floats(0, 1, exclude_max=True), st.sampled_from(NUMBERS)),
    st.tuples(st.just("u64"), st.floats(0, 1, exclude_max=True), st.sampled_from(NUMBERS)),
    st.tuples(st.just("cut"), st.floats(0, 1, exclude_max=True), st.just(0)),
    st.tuples(st.just("remove"), st.floats(0, 1, exclude_max=True), st.integers(1, 16)),
    st.tuples(st.just("insert"), st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
)


def mutate(content: bytearray, mutations: list[tuple[str, float, int]]) -> bytes:
    for kind, fraction, value in mutations:
        at = int(fraction * len(content))
        if kind == "byte" and content:
            content[at] = value
        elif kind == "u32":
            content[at : at + 4] = struct.pack("<I", value & 0xFFFFFFFF)
        elif kind == "u64":
            content[at : at + 8] = struct.pack("<Q", value)
        elif kind == "cut":
            del content[at:]
        elif kind == "remove":
            del content[at : at + value]
        elif kind == "insert":
            content[at:at] = bytes([value])
    return bytes(content)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(mutations=st.lists(MUTATION, min_size=1, max_size=4))
def test_a_mutated_file_opens_or_is_refused(
    write_gguf: WriteGGUF, tmp_path: Path, mutations: list[tuple[str, float, int]]
) -> None:
    source = tmp_path / "tiny.gguf"
    if not source.exists():
        write_gguf()
    mutant = tmp_path / "mutant.gguf"
    mutant.write_bytes(mutate(bytearray(source.read_bytes()), mutations))
    started = time.perf_counter()
    try:
        with GGUFFile.open(mutant) as file:
            assert len(dict(file.metadata)) == len(file.metadata)
            for tensor in file.tensors.values():
                assert dequantize(tensor.raw, tensor.type, tensor.shape).shape == tensor.shape
    except ModelFileError as error:
        assert "\n" not in str(error)
    assert time.perf_counter() - started < 1


MEASURE = """
import sys, time
from pathlib import Path
from chairlift.errors import ModelFileError
from chairlift.weights.gguf import GGUFFile

def peak_mib():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024

before = peak_mib()
for path in sys.argv[1:]:
    started = time.perf_counter()
    try:
        GGUFFile.open(Path(path))
    except ModelFileError:
        pass
    else:
        raise SystemExit(f"{path} was opened")
    seconds = time.perf_counter() - started
    if seconds > 1:
        raise SystemExit(f"{path} took {seconds} s")
print(peak_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_hostile_files_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    # Sparse files of 8 GiB make every claim below the caps plausible; each one ends in a lie.
    lie = tensor("lie", type=999)
    most_tensors = b"".join(tensor(f"{index:0250d}", offset=32 * index) for index in range(32_767))
    most_keys = b"".join(u32_key(f"{index:04000d}", 1) for index in range(4096))
    contents = {
        "strings_up_to_the_cap": header(num_tensors=1, num_keys=1) + array("a", 8, 2 << 20),
        "strings_beyond_the_cap": header(num_tensors=1, num_keys=1) + array("a", 8, (2 << 20) + 1),
        "one_endless_string_in_an_array": (
            header(num_tensors=1, num_keys=1) + array("a", 8, 1) + struct.pack("<Q", 4 << 30)
        ),
        "largest_string": (
            header(num_tensors=1, num_keys=1) + string("a") + struct.pack("<IQ", 8, 64 << 20)
        ),
        "largest_array": header(num_tensors=1, num_keys=1) + array("a", 0, 128 << 20),
        "most_tensors": header(num_tensors=32_768) + most_tensors + lie,
        "most_keys": header(num_tensors=1, num_keys=4096) + most_keys + lie,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        os.truncate(tmp_path / name, 8 << 30)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in contents)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 64


@pytest.mark.real_model
def test_the_default_model_opens_quickly_and_in_full() -> None:
    wheel, models = WHEELS[DEFAULT_MODEL], cache_folder() / "models"
    if not is_cached(wheel, models):
        pytest.skip("the default model is not in the cache: chairlift pull smollm2")
    path = cached_path(wheel, models)
    started = time.perf_counter()
    with GGUFFile.open(path) as file:
        metadata: dict[str, Any] = dict(file.metadata)
        assert time.perf_counter() - started < 0.3
        assert len(metadata["tokenizer.ggml.tokens"]) == 49_152
        assert len(metadata["tokenizer.ggml.merges"]) == 48_900
        assert len(file.tensors) == 272
        assert {t.type.name for t in file.tensors.values()} == {"F32", "Q4_1", "Q8_0"}
        norm = file.tensors["output_norm.weight"]
        assert np.isfinite(dequantize(norm.raw, norm.type, norm.shape)).all()
