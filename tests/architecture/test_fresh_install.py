"""`pip install .` into an empty environment: small, without torch, and able to generate.

Builds the package from a copy of the tree, as a user would, so it needs a package index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_INSTALLED_BYTES = 210_000_000
NOT_PART_OF_CORE = ("torch", "triton", "ray", "matplotlib", "transformers", "opentelemetry")

GENERATE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
import chairlift  # the copy that was installed, not a developer's tree
from chairlift import LLM, SamplingParams
llm = LLM(sys.argv[1], kernels=sys.argv[2], kv_cache_memory="64MiB", swap_space=0.0)
output = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
print("from", chairlift.__file__)
print("tokens", output[0].outputs[0].token_ids, "torch" in sys.modules)
"""


def copy_of_tree(folder: Path) -> Path:
    """The files that a source distribution needs, without what earlier builds left behind."""
    for name in ("src", "csrc"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pyc*"))
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def new_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={name: v for name, v in os.environ.items() if name != "PYTHONPATH"} | environment,
    )


@pytest.mark.timeout(300)
def test_a_fresh_install_is_small_and_generates_without_torch(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    python = new_environment(tmp_path / "venv")
    source = tmp_path / "source"
    source.mkdir()
    # The optimised kernels are what all other tests run on; here they would cost a minute.
    quick = "--config-settings=cmake.build-type=None"
    installed = run(python, "-m", "pip", "install", quick, copy_of_tree(source), cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr[-2000:]
    packages = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    for name in NOT_PART_OF_CORE:
        assert not (packages / name).exists(), f"{name} was installed"
    num_bytes = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert num_bytes < MAX_INSTALLED_BYTES, f"{num_bytes / 1e6:.0f} MB installed"
    answers = [
        run(python, "-c", GENERATE, tiny_folder("llama3"), kernels, cwd=tmp_path)
        for kernels in ("native", "reference")
    ]
    for answer in answers:
        assert answer.returncode == 0, answer.stderr[-2000:]
        assert answer.stdout.startswith(f"from {packages}")
        assert "\ntokens [" in answer.stdout and answer.stdout.endswith("False\n")
    version = run(tmp_path / "venv" / "bin" / "chairlift", "info", cwd=tmp_path)
    assert version.returncode == 0, version.stderr


@pytest.mark.timeout(300)
def test_without_a_compiler_the_reference_kernels_take_over(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    target = tmp_path / "packages"
    hidden = {"CC": "/nonexistent", "CXX": "/nonexistent"}
    installed = run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--target", target,
        copy_of_tree(source), cwd=tmp_path, **hidden,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr[-2000:]
    answer = run(
        sys.executable, "-c", GENERATE, tiny_folder("llama3"), "auto",
        cwd=tmp_path, PYTHONPATH=str(target),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert answer.stdout.startswith(f"from {target}") and "\ntokens [" in answer.stdout
    assert answer.stderr.count("reference kernels") == 1
