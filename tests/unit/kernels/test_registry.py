"""Names to backends, and the fall-back."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from chairlift.errors import ConfigError
from chairlift.kernels.cpu.library import LIBRARY_VARIABLE, NativeLibrary, load_library
from chairlift.kernels.registry import create_kernels


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine where the library was never built."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "absent.so"))
    load_library.cache_clear()


@pytest.mark.parametrize("name", ["auto", "native"])
def test_native_where_it_loads(
    library: NativeLibrary, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    library.set_isa(library.available_isas[0])
    assert create_kernels(name, 1).name == "native"
    assert len(caplog.records) == (library.isa == "scalar")


def test_int8_on_request(library: NativeLibrary) -> None:
    assert create_kernels("int8", 1).name == "int8"


def test_reference_on_request(caplog: pytest.LogCaptureFixture) -> None:
    assert create_kernels("reference", 1).name == "reference"
    assert caplog.records == []


def test_auto_falls_back_with_one_warning(
    no_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert create_kernels("auto", 1).name == "reference"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "slow reference kernels" in record.message
    assert "absent.so is not a file" in record.message


@pytest.mark.parametrize("name", ["auto", "int8"])
def test_without_vector_instructions_there_is_one_warning(
    library: NativeLibrary, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    library.set_isa("scalar")
    create_kernels(name, 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == (
        "kernels run without vector instructions, many times slower: CHAIRLIFT_ISA asks for it"
    )


def test_the_processor_is_named_where_it_has_none(
    library: NativeLibrary, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.set_isa("scalar")
    monkeypatch.setattr(NativeLibrary, "available_isas", ("scalar",))
    create_kernels("native", 1)
    assert caplog.records[0].message.endswith("this processor has none they know")


def test_native_on_request_does_not_fall_back(no_library: None) -> None:
    with pytest.raises(ConfigError, match=r"native kernels cannot be used: .*absent\.so") as error:
        create_kernels("native", 1)
    assert error.value.field == "kernels"


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'cuda': choose one of auto, native, int8, reference"):
        create_kernels("cuda", 1)


def test_num_threads_below_one() -> None:
    with pytest.raises(ConfigError, match="num_threads must be at least 1, not 0"):
        create_kernels("auto", 0)


@pytest.mark.parametrize(
    ("kernels", "asked", "stored"),
    [
        ("native", "auto", "float32"),
        ("auto", "auto", "float32"),
        ("reference", "auto", "float32"),
        ("int8", "auto", "int8"),
        ("int8", "int8", "int8"),
        ("int8", "float16", "float16"),
        ("int8", "fp32", "float32"),
        ("native", "bf16", "bfloat16"),
        ("auto", "fp16", "float16"),
        ("reference", "bfloat16", "bfloat16"),
    ],
)
def test_what_a_cache_stores(library: NativeLibrary, kernels: str, asked: str, stored: str) -> None:
    created = create_kernels(kernels, 1, kv_cache_dtype=asked)
    assert created.kv_dtype == stored
    assert created.kv_block(2, 2, 32, 16).kv_dtype == stored


def test_a_fall_back_keeps_what_a_cache_stores(no_library: None) -> None:
    assert create_kernels("auto", 1, kv_cache_dtype="fp16").kv_dtype == "float16"


@pytest.mark.parametrize("kernels", ["native", "auto", "reference"])
def test_only_bytes_are_stored_as_bytes(kernels: str) -> None:
    name = "native" if kernels == "auto" else kernels
    wanted = f"kernels={name} cannot have kv_cache_dtype=int8: .*or set kernels to int8"
    with pytest.raises(ConfigError, match=wanted) as error:
        create_kernels(kernels, 1, kv_cache_dtype="int8")
    assert error.value.field == "kv_cache_dtype"


def test_an_unknown_type_of_cache_lists_the_known_ones() -> None:
    wanted = "choose one of float16, bfloat16, float32, int8$"
    with pytest.raises(ConfigError, match=wanted) as error:
        create_kernels("int8", 1, kv_cache_dtype="fp8")
    assert error.value.field == "kv_cache_dtype"


@pytest.mark.parametrize(
    ("kernels", "asked", "compute"),
    [
        ("int8", "auto", "exact"),
        ("int8", "exact", "exact"),
        ("int8", "fast", "fast"),
        ("native", "auto", None),
        ("auto", "auto", None),
        ("reference", "auto", None),
    ],
)
def test_how_quantised_matrices_are_multiplied(
    library: NativeLibrary, kernels: str, asked: str, compute: str | None
) -> None:
    assert create_kernels(kernels, 1, quant_compute=asked).quant_compute == compute


@pytest.mark.parametrize("kernels", ["native", "auto", "reference"])
@pytest.mark.parametrize("asked", ["exact", "fast"])
def test_kernels_on_floats_have_no_choice(kernels: str, asked: str) -> None:
    name = "native" if kernels == "auto" else kernels
    wanted = f"quant_compute={asked} has no effect on kernels={name}: .*set kernels to int8"
    with pytest.raises(ConfigError, match=wanted) as error:
        create_kernels(kernels, 1, quant_compute=asked)
    assert error.value.field == "quant_compute"


def test_an_unknown_way_to_multiply_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="must be one of auto, exact, fast") as error:
        create_kernels("int8", 1, quant_compute="faster")
    assert error.value.field == "quant_compute"
