"""Prints the sizes of files and functions beside the project's size guide.  Judges nothing.

python scripts/size_report.py
"""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONG_FILE, LONG_FUNCTION, NUM_SHOWN = 300, 40, 5


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def show(title: str, sizes: list[tuple[str, int]], limit: int) -> None:
    """One line of statistics, and the longest above the limit."""
    lengths = sorted(size for _, size in sizes)
    median, p90 = statistics.median(lengths), lengths[int(len(lengths) * 0.9)]
    total = sum(lengths)
    print(f"{title}: {len(sizes)}, {total} lines; median {median:.0f}, p90 {p90}")
    longest = sorted((item for item in sizes if item[1] > limit), key=lambda item: -item[1])
    for name, size in longest[:NUM_SHOWN]:
        print(f"  {size:5d}  {name}")


def main() -> None:
    package = sorted((ROOT / "src").rglob("*.py"))
    names = {path: str(path.relative_to(ROOT)) for path in package}
    files = [(names[path], path.read_text(encoding="utf-8").count("\n")) for path in package]
    show("files", files, LONG_FILE)
    show(
        "functions",
        [(f"{names[p]}:{name}", size) for p in package for name, size in functions(p)],
        LONG_FUNCTION,
    )


if __name__ == "__main__":
    main()
