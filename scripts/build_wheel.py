"""Builds a wheel that runs on every Linux of a processor family, and the source distribution.

    scripts/wheel [--arch aarch64]        installs the tools and runs this

The compiler is Zig's: clang, with libc++ linked in and the symbols of any version of the C library.
So the wheel asks for an old one, whatever this machine has, and the same build makes it for another
processor.  `auditwheel` says whether the name that promises this is true.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ARCHS = ("x86_64", "aarch64")
GLIBC = (2, 17)
"""Of the oldest systems that package indexes still serve."""
SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-")
"""What the library may need: parts of the C library.  The last one is the start of a name."""
LIBRARY = "chairlift/kernels/cpu/libchairlift_kernels.so"
MAX_WHEEL_BYTES = 8_000_000


class LibraryFacts(NamedTuple):
    """What a shared library asks of a system, and what it shows to one."""

    needed: tuple[str, ...]
    versions: tuple[str, ...]
    """Of symbols: GLIBC_2.17 and the like."""
    exports: tuple[str, ...]


def compiler_target(arch: str) -> str:
    return f"{arch}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"


def platform_tag(arch: str) -> str:
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{arch}"


def complaints(facts: LibraryFacts) -> Iterator[str]:
    """Why a library does not fit the tag, one line each."""
    for name in facts.needed:
        if not name.startswith(SYSTEM_LIBRARIES):
            yield f"it needs {name}, which is not a part of the C library"
    for version in facts.versions:
        family, _, number = version.partition("_")
        if family != "GLIBC" or tuple(map(int, number.split("."))) > GLIBC:
            yield f"it needs {version}, and promises to run with GLIBC_{GLIBC[0]}.{GLIBC[1]}"
    for name in facts.exports:
        if not name.startswith("chairlift_"):
            yield f"it shows {name} to other libraries"
    if not facts.exports:
        yield "it exports nothing"


def read_facts(library: Path) -> LibraryFacts:
    from elftools.elf.elffile import ELFFile  # comes with auditwheel

    with library.open("rb") as file:
        elf = ELFFile(file)
        tags = elf.get_section_by_name(".dynamic").iter_tags()
        verneed = elf.get_section_by_name(".gnu.version_r").iter_versions()
        symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
        return LibraryFacts(
            needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
            versions=tuple(entry.name for _, entries in verneed for entry in entries),
            exports=tuple(
                symbol.name
                for symbol in symbols
                if symbol.name
                and symbol["st_shndx"] != "SHN_UNDEF"
                and symbol["st_info"]["bind"] != "STB_LOCAL"
            ),
        )


def build(arch: str, folder: Path) -> tuple[Path, Path]:
    """The wheel as the build makes it, and the source distribution that it was made from."""
    import ziglang

    zig = Path(ziglang.__file__).with_name("zig")
    caches = {
        name: str(ROOT / "build" / "zig-cache")
        for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
    }
    environment = {
        "CXX": f"{zig} c++ -target {compiler_target(arch)}",
        "LDFLAGS": "-s",
        # For Python and for CMake, when it is another machine's.
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
    }
    settings = [
        "cmake.define.CMAKE_SYSTEM_NAME=Linux",
        f"cmake.define.CMAKE_SYSTEM_PROCESSOR={arch}",
        "install.strip=false",  # the linker did it
    ]
    # Both names are given, so that the wheel is made from the source distribution.
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, *(f"-C{s}" for s in settings), ROOT],
        check=True,
        env=os.environ | caches | environment,
    )
    return only(folder.glob("*.whl")), only(folder.glob("*.tar.gz"))


def only(paths: Iterable[Path]) -> Path:
    found = list(paths)
    if len(found) != 1:
        raise SystemExit(f"expected one file, found {', '.join(map(str, found)) or 'none'}")
    return found[0]


def check_contents(wheel: Path, folder: Path) -> None:
    """Raise SystemExit unless the library is in the wheel and fits the tag."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".so" in Path(name).suffixes]
        if libraries != [LIBRARY]:
            raise SystemExit(f"{wheel.name} should hold {LIBRARY}, and holds {libraries or 'none'}")
        found = list(complaints(read_facts(Path(archive.extract(LIBRARY, folder)))))
    if found:
        raise SystemExit("\n".join([f"{LIBRARY} does not fit the wheel's tag:", *found]))
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/wheel", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--arch", choices=ARCHS, default="x86_64", help="processor family")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder; default: dist")
    parser.add_argument("--no-try", action="store_true", help="build, without trying it")
    options = parser.parse_args()

    folder = ROOT / "build" / f"wheel-{options.arch}"
    shutil.rmtree(folder, ignore_errors=True)
    wheel, source = build(options.arch, folder)
    check_contents(wheel, folder)
    options.out.mkdir(exist_ok=True)
    repaired = folder / "repaired"
    subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", wheel, "--wheel-dir", repaired]
        + ["--plat", platform_tag(options.arch)],
        check=True,
    )
    made = [Path(shutil.copy(path, options.out)) for path in (only(repaired.glob("*.whl")), source)]
    for path in made:
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path}")
    if options.no_try or options.arch != platform.machine():
        return
    subprocess.run([sys.executable, ROOT / "scripts" / "try_wheel.py", *made], check=True)


if __name__ == "__main__":
    main()
