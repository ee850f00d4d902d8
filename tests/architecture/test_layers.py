"""Imports point downward, and some rooms do without some packages."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "chairlift"

LEVELS = {
    "cli": 9,
    "bench": 8,
    "server": 7,
    "engine": 5,
    "runner": 4,
    "models": 3,
    "grammar": 3,
    "weights": 2,
    "tokenizer": 2,
    "kernels": 1,
    "core": 1,
    "store": 1,
}
"""Rooms by height; a module in the package's own folder is at level 0."""
TOP = {"__init__", "__main__"}
"""The front doors may look into any room."""
THIRD_PARTY = {
    "core": set(),
    "models": set(),
    "grammar": {"llguidance", "numpy"},
    "kernels": {"numpy", "threadpoolctl"},
    "runner": {"numpy"},
    "weights": {"numpy", "huggingface_hub"},
    "tokenizer": {"tokenizers", "jinja2"},
    "engine": {"tqdm"},
    "bench": {"numpy", "matplotlib", "rich", "uvloop"},
    "server": {
        "opentelemetry",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "starlette",
        "uvicorn",
    },
    "store": set(),
    "cli": {"typer", "click", "rich"},
    "": set(),
}
"""Packages outside the standard library that a room may import."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of every import, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            yield node.module or "", node.lineno


def room_of_import(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVELS else ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    room = room_of(path)
    if not room and path.stem in TOP:
        return
    for name, line in imports(path):
        if name.split(".")[0] != "chairlift":
            continue
        target = room_of_import(name)
        is_lower = LEVELS.get(target, 0) < LEVELS.get(room, 0)
        both_top = not target and not room
        assert target == room or is_lower or both_top, f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_their_packages(path: Path) -> None:
    allowed = THIRD_PARTY[room_of(path)] | {"chairlift"}
    for name, line in imports(path):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top in allowed, f"{path}:{line} imports {name}"


def test_the_load_generator_knows_servers_by_http_only() -> None:
    for path in sorted((PACKAGE / "bench" / "serve").glob("*.py")):
        for name, line in imports(path):
            is_own = (
                name.startswith("chairlift.bench.serve.") or name == "chairlift.bench.text_table"
            )
            is_level_0 = name.startswith("chairlift") and not room_of_import(name)
            is_foreign = not name.startswith("chairlift")
            assert is_own or is_level_0 or is_foreign, f"{path}:{line} imports {name}"


def test_every_room_has_a_level() -> None:
    rooms = {room_of(path) for path in modules()} - {""}
    assert rooms == set(LEVELS)


def test_nobody_above_the_kernels_reads_the_wall_clock_in_core() -> None:
    for path in sorted((PACKAGE / "core").glob("*.py")):
        assert "time" not in {name for name, _ in imports(path)}, f"{path} reads the clock"


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "misc"])
def test_no_file_has_a_name_that_says_nothing(name: str) -> None:
    assert not [path for path in modules() if path.stem == name]
