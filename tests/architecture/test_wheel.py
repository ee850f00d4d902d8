"""What the wheel promises about systems, and that the script which builds it keeps it.

The build itself, and trying it without a compiler, is `scripts/wheel`: minutes, so under
`scripts/test --full`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from chairlift.kernels.cpu.library import LibraryUnavailableError, load_library

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build_wheel() -> ModuleType:
    """scripts/build_wheel.py, which is no part of the package."""
    path = ROOT / "scripts" / "build_wheel.py"
    spec = importlib.util.spec_from_file_location("build_wheel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tag_and_the_compiler_s_target_say_the_same(build_wheel: ModuleType) -> None:
    assert build_wheel.platform_tag("x86_64") == "manylinux_2_17_x86_64"
    assert build_wheel.compiler_target("x86_64") == "x86_64-linux-gnu.2.17"
    assert build_wheel.compiler_target("aarch64") == "aarch64-linux-gnu.2.17"


def test_a_library_that_fits(build_wheel: ModuleType) -> None:
    facts = build_wheel.LibraryFacts(
        needed=("libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0"),
        versions=("GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.3"),
        exports=("chairlift_isa", "chairlift_set_isa"),
    )
    assert list(build_wheel.complaints(facts)) == []


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("needed", ("libc.so.6", "libstdc++.so.6"), "it needs libstdc++.so.6, which is not"),
        ("needed", ("libcrypto.so.3",), "it needs libcrypto.so.3, which is not"),
        ("versions", ("GLIBC_2.17", "GLIBC_2.17.1"), "it needs GLIBC_2.17.1, and promises"),
        ("versions", ("GLIBC_2.34",), "it needs GLIBC_2.34, and promises to run with GLIBC_2.17"),
        ("versions", ("GLIBC_2.100",), "it needs GLIBC_2.100, and promises"),
        ("versions", ("CXXABI_1.3",), "it needs CXXABI_1.3, and promises"),
        ("exports", ("chairlift_isa", "_Znwm"), "it shows _Znwm to other libraries"),
        ("exports", (), "it exports nothing"),
    ],
)
def test_a_library_that_does_not_fit(
    build_wheel: ModuleType, field: str, value: tuple[str, ...], complaint: str
) -> None:
    good = build_wheel.LibraryFacts(needed=(), versions=(), exports=("chairlift_isa",))
    (line,) = build_wheel.complaints(good._replace(**{field: value}))
    assert line.startswith(complaint)


@pytest.mark.skipif(sys.platform != "linux", reason="hiding symbols is the Linux linker's work")
def test_the_library_hides_its_c_plus_plus_run_time() -> None:
    try:
        functions = load_library().functions
    except LibraryUnavailableError as error:
        pytest.skip(f"the native library is absent: {error}")
    assert functions.chairlift_isa is not None
    with pytest.raises(AttributeError):
        _ = functions._Znwm  # operator new


@pytest.mark.parametrize(("script", "option"), [("wheel", "--arch"), ("sanitize", "--quick")])
def test_scripts_say_what_they_do(script: str, option: str) -> None:
    said = subprocess.run([ROOT / "scripts" / script, "--help"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert option in said.stdout


@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    os.environ.get("CHAIRLIFT_FULL") != "1", reason="some minutes: run scripts/test --full"
)
def test_the_wheel_runs_without_a_compiler(tmp_path: Path) -> None:
    made = subprocess.run(
        [ROOT / "scripts" / "wheel", "--out", tmp_path], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert "py3-none-manylinux_2_17_x86_64" in wheel.name
