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
