"""Installs a wheel and a source distribution as on a machine without a compiler, and uses both.

    python scripts/try_wheel.py dist/chairlift-*.whl dist/chairlift-*.tar.gz

Each gets a new environment whose PATH holds nothing else; the compilers' variables lead nowhere,
because CMake looks into the system's folders unasked.  The texts must be those that this checkout's
own environment generates with the same kernels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT = ROOT / ".venv" / "bin" / "chairlift"
BUILD_TOOLS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
PROMPT = "The capital of France is"
NUM_TOKENS = 8
SLOW = {"scalar": "without vector instructions", "reference": "slow reference kernels"}


class Environment:
    """A fresh virtual environment that cannot compile."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["python3", "-m", "venv", folder], check=True)
        self.bin = folder / "bin"
        nowhere = {name: "/nonexistent" for name in ("CC", "CXX")}
        self.variables = os.environ | nowhere | {"PATH": str(self.bin)}
        for name in ("PYTHONPATH", "CHAIRLIFT_LIBRARY", "CHAIRLIFT_ISA"):
            self.variables.pop(name, None)
        found = [tool for tool in BUILD_TOOLS if shutil.which(tool, path=str(self.bin))]
        assert not found, f"not hidden: {found}"

    def install(self, package: Path) -> None:
        command = [self.bin / "python", "-m", "pip", "install", "--quiet"]
        run([*command, "--disable-pip-version-check", package], self.variables)


def run(
    command: list[str | Path], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Raises SystemExit with what was said if the command fails."""
    with tempfile.TemporaryDirectory() as elsewhere:  # so that no checkout is found from here
        done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=elsewhere)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done


def generate(
    chairlift: Path, variables: Mapping[str, str], kernels: str, isa: str | None = None
) -> subprocess.CompletedProcess[str]:
    chosen = {"CHAIRLIFT_ISA": isa} if isa else {}
    options = ["--temperature", "0", "--max-tokens", str(NUM_TOKENS), "--quiet", "--no-stream"]
    command = [chairlift, "generate", PROMPT, "--kernels", kernels, *options]
    return run([str(part) for part in command], {**variables, **chosen})


def check_text(
    environment: Environment, kernels: str, isa: str | None = None, warning: str = ""
) -> None:
    """The same text as the checkout's, and one warning line or none.

    Args:
        kernels: of both; the checkout's "auto" are the reference kernels, for so are those that
            are compared with them.
        warning: part of the line expected, or nothing.
    """
    own = generate(environment.bin / "chairlift", environment.variables, kernels, isa)
    same = "reference" if kernels == "auto" else kernels
    wanted = generate(DEVELOPMENT, os.environ, same, isa)
    name = f"{kernels}{f' at {isa}' if isa else ''}"
    if own.stdout != wanted.stdout:
        raise SystemExit(f"{name}: {own.stdout!r}, but the checkout says {wanted.stdout!r}")
    summary = "tokens/s"  # of the run, which ends every one
    lines = [line for line in own.stderr.splitlines() if not line.endswith(summary)]
    if len(lines) != bool(warning) or warning not in own.stderr:
        raise SystemExit(f"{name}: expected {warning or 'no warning'!r} in one line, got {lines}")
    print(f"  {name}: {own.stdout.strip()!r}{f' ({lines[0]})' if lines else ''}")


def info(environment: Environment) -> str:
    """The line about the kernels."""
    said = run([environment.bin / "chairlift", "info"], environment.variables).stdout
    return next(line for line in said.splitlines() if line.startswith("kernels"))


def try_wheel(wheel: Path, folder: Path) -> None:
    environment = Environment(folder)
    environment.install(wheel)
    line = info(environment)
    print(f"{wheel.name}\n  {line}")
    if "native" not in line:
        raise SystemExit("the native library is not used")
    for kernels in ("native", "int8"):
        check_text(environment, kernels)
        check_text(environment, kernels, "scalar", SLOW["scalar"])


def try_source(source: Path, folder: Path) -> None:
    environment = Environment(folder)
    environment.install(source)
    line = info(environment)
    print(f"{source.name}\n  {line}")
    if "native" in line:
        raise SystemExit("a library was built without a compiler")
    check_text(environment, "auto", warning=SLOW["reference"])
    check_text(environment, "auto", "scalar", SLOW["reference"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("source", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try_wheel(options.wheel.resolve(), Path(folder) / "wheel")
        try_source(options.source.resolve(), Path(folder) / "source")


if __name__ == "__main__":
    main()
