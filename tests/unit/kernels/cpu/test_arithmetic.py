"""Which levels are chosen from which rates, and that a choice outlives its process."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.errors import ModelSourceError
from chairlift.kernels.cpu import arithmetic_file
from chairlift.kernels.cpu import library as library_module
from chairlift.kernels.cpu.arithmetic import (
    KINDS,
    MARGIN,
    Arithmetic,
    choose_arithmetic,
    choose_level,
)
from chairlift.kernels.cpu.library import NativeLibrary, load_library

Rates = dict[str, dict[str, float]]

RATES: Rates = {
    "floats": {"avx512": 40.0, "avx2": 50.0, "scalar": 5.0},
    "bytes": {"avx512_vnni": 300.0, "avx2_vnni": 200.0, "avx2": 100.0, "scalar": 2.0},
}
OTHER_RATES: Rates = {
    "floats": {"avx512": 60.0, "avx2": 50.0, "scalar": 5.0},
    "bytes": {"avx512_vnni": 100.0, "avx2_vnni": 200.0, "avx2": 100.0, "scalar": 2.0},
}


@dataclasses.dataclass
class FakeLibrary:
    """Rates as a test wants them, and how often they were asked for."""

    path: Path
    rates: Rates
    processor: str = "a processor"
    num_measured: int = 0

    def levels(self, kind: str) -> tuple[str, ...]:
        return tuple(self.rates[kind])

    def measure_levels(self, kind: str) -> dict[str, float]:
        self.num_measured += 1
        return self.rates[kind]


MakeLibrary = Callable[..., FakeLibrary]


@pytest.fixture
def make_library(tmp_path: Path) -> MakeLibrary:
    def make(
        rates: Rates = RATES, *, build: bytes = b"one", processor: str = "a processor"
    ) -> FakeLibrary:
        path = tmp_path / "library.so"
        path.write_bytes(build)
        return FakeLibrary(path, rates, processor)

    return make


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ([50.0, 49.0, 6.0], 0),
        ([50.0, 50.0 * MARGIN, 6.0], 0),  # not clearly faster
        ([50.0, 50.0 * MARGIN + 0.1, 6.0], 1),
        ([50.0, 60.0, 61.0], 1),  # the third is not clearly faster than the second
        ([50.0, 52.0, 54.0], 2),
        ([50.0, 60.0, 70.0], 2),
        ([50.0, 49.0, 70.0], 2),
        ([50.0], 0),
    ],
)
def test_a_narrower_level_must_be_clearly_faster(rates: list[float], chosen: int) -> None:
    assert choose_level({f"level {i}": rate for i, rate in enumerate(rates)}) == f"level {chosen}"


def test_floats_and_bytes_are_chosen_apart(make_library: MakeLibrary, tmp_path: Path) -> None:
    choice = choose_arithmetic(make_library(), tmp_path / "cache")
    assert (choice.isa, choice.source) == ("avx2+avx512_vnni", "measured")
    assert choice.rates == RATES and choice.path is not None and choice.path.is_file()
    assert choose_arithmetic(make_library(OTHER_RATES), None).isa == "avx512+avx2_vnni"


def test_the_next_start_does_not_choose_again(make_library: MakeLibrary, tmp_path: Path) -> None:
    first = choose_arithmetic(make_library(), tmp_path)
    later = make_library(OTHER_RATES)
    second = choose_arithmetic(later, tmp_path)
    assert later.num_measured == 0
    assert second == dataclasses.replace(first, source="stored")


@pytest.mark.parametrize("change", ["build", "processor", "microcode", "version"])
def test_another_processor_or_build_is_measured_for_itself(
    make_library: MakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = choose_arithmetic(make_library(), tmp_path)
    with monkeypatch.context() as patch:
        other: dict[str, Any] = {}
        if change == "build":
            other["build"] = b"two"
        elif change == "processor":
            other["processor"] = "another"
        elif change == "microcode":
            patch.setattr(arithmetic_file, "microcode_version", lambda: "0xnew")
        else:
            patch.setattr(arithmetic_file, "__version__", "99")
        second = choose_arithmetic(make_library(OTHER_RATES, **other), tmp_path)
    assert second.source == "measured" and second.isa != first.isa
    # Neither took the place of the other.
    assert choose_arithmetic(make_library(OTHER_RATES), tmp_path).isa == first.isa


def changed(content: dict[str, Any], *keys: str, value: object) -> str:
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: "",
        lambda content: json.dumps(content)[:-20],
        lambda content: "[1, 2]",
        lambda content: "\0\xff not JSON",
        lambda content: "[" * 60_000,
        lambda content: changed(content, "subject", "processor", value="another"),
        lambda content: changed(content, "levels", "floats", value="avx1024"),
        lambda content: changed(content, "levels", "floats", value=["avx2"]),
        lambda content: changed(content, "levels", value={}),
        lambda content: changed(content, "rates", "bytes", "avx2", value="fast"),
        lambda content: changed(content, "rates", "bytes", value={"avx2": 1.0}),
    ],
)
def test_a_spoilt_file_is_ignored_and_written_anew(
    make_library: MakeLibrary, tmp_path: Path, spoil: Callable[[Any], str]
) -> None:
    path = choose_arithmetic(make_library(), tmp_path).path
    assert path is not None
    path.write_text(spoil(json.loads(path.read_text())), encoding="latin-1")
    again = choose_arithmetic(make_library(), tmp_path)
    assert (again.source, again.path) == ("measured", path)
    assert choose_arithmetic(make_library(OTHER_RATES), tmp_path).isa == again.isa


def test_a_folder_in_its_place_is_no_failure(make_library: MakeLibrary, tmp_path: Path) -> None:
    path = choose_arithmetic(make_library(), tmp_path).path
    assert path is not None
    path.unlink()
    path.mkdir()
    again = choose_arithmetic(make_library(), tmp_path)
    assert (again.source, again.path) == ("measured", None)


def test_a_cache_that_cannot_be_written(make_library: MakeLibrary, tmp_path: Path) -> None:
    """Root may write anywhere but below a file."""
    (tmp_path / "file").touch()
    library = make_library()
    for _ in range(2):
        choice = choose_arithmetic(library, tmp_path / "file")
        assert (choice.isa, choice.source, choice.path) == ("avx2+avx512_vnni", "measured", None)
    assert library.num_measured == 2 * len(KINDS)


def test_a_write_that_fails_leaves_nothing_behind(
    make_library: MakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: object, target: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(arithmetic_file.os, "replace", fail)
    assert choose_arithmetic(make_library(), tmp_path / "cache").path is None
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_without_a_choice_nothing_is_measured(make_library: MakeLibrary, tmp_path: Path) -> None:
    library = make_library({kind: {"scalar": 1.0} for kind in KINDS})
    choice = choose_arithmetic(library, tmp_path / "cache")
    assert (choice.isa, choice.source) == ("scalar+scalar", "only")
    assert library.num_measured == 0 and not (tmp_path / "cache").exists()


# -- the real library ----------------------------------------------------------------------------


@pytest.fixture
def load_afresh(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Arithmetic]:
    """load_afresh(ISA="avx2") -> what a new process would choose with that environment."""
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CHAIRLIFT_ISA", raising=False)

    def load(**environment: str) -> Arithmetic:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(f"CHAIRLIFT_{name}", value)
            load_library.cache_clear()
            try:
                return load_library().arithmetic
            finally:
                load_library.cache_clear()

    return load


def test_every_level_has_a_rate(library: NativeLibrary) -> None:
    for kind in KINDS:
        rates = library.measure_levels(kind)
        assert tuple(rates) == library.levels(kind) and rates["scalar"] > 0
        assert all(rate > 0 for rate in rates.values())


def test_loading_measures_once(
    load_afresh: Callable[..., Arithmetic], library: NativeLibrary
) -> None:
    if all(len(library.levels(kind)) == 1 for kind in KINDS):
        pytest.skip("this machine has no choice")
    first = load_afresh()
    assert first.source == "measured" and set(first.levels) == set(KINDS)
    assert load_afresh(ISA="auto") == dataclasses.replace(first, source="stored")


def test_the_environment_forces_a_level_and_leaves_the_cache_alone(
    load_afresh: Callable[..., Arithmetic], tmp_path: Path
) -> None:
    choice = load_afresh(ISA="scalar")
    assert (choice.isa, choice.source, choice.rates) == ("scalar", "forced", {})
    assert not (tmp_path / "cache").exists()


def test_every_pair_of_levels_can_be_used(library: NativeLibrary) -> None:
    for floats in library.levels("floats"):
        for narrow in library.levels("bytes"):
            library.set_isa(f"{floats}+{narrow}")
            name = library.isa
            assert name in library.available_isas or name == f"{floats}+{narrow}"
            library.set_isa(name)
            assert library.isa == name


def test_a_cache_folder_that_is_none_fails_loudly(load_afresh: Callable[..., Arithmetic]) -> None:
    with pytest.raises(ModelSourceError, match="CHAIRLIFT_CACHE=nowhere must be the absolute path"):
        load_afresh(CACHE="nowhere")


@pytest.mark.skipif(sys.platform == "win32", reason="another function finds the home folder there")
def test_a_user_without_a_home_measures_at_every_start(
    load_afresh: Callable[..., Arithmetic], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise ModelSourceError("the home folder is unknown")

    monkeypatch.setattr(library_module, "cache_folder", fail)
    assert load_afresh(CACHE="").path is None
