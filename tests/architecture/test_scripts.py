"""The doors of the project are named where people look for them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_script_has_its_line(page: str) -> None:
    text = (ROOT / page).read_text()
    doors = [path.name for path in (ROOT / "scripts").iterdir() if not path.suffix]
    assert len(doors) > 4
    assert [name for name in doors if f"scripts/{name}" not in text] == []
