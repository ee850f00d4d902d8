"""Which folder holds downloaded models and measurements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chairlift.cache_folder import cache_folder
from chairlift.errors import ModelSourceError


def test_the_order_of_the_variables(tmp_path: Path) -> None:
    own, shared = str(tmp_path / "own"), str(tmp_path / "shared")
    assert cache_folder({"CHAIRLIFT_CACHE": own, "XDG_CACHE_HOME": shared}) == Path(own)
    assert cache_folder({"XDG_CACHE_HOME": shared}) == Path(shared) / "chairlift"
    assert cache_folder({"CHAIRLIFT_CACHE": "", "XDG_CACHE_HOME": shared}).parent == Path(shared)


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, ".cache/chairlift"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/chairlift"),
        ("darwin", {}, "Library/Caches/chairlift"),
        ("win32", {}, "AppData/Local/chairlift/cache"),
    ],
)
def test_what_the_system_provides_for(
    monkeypatch: pytest.MonkeyPatch, platform: str, environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder(environ) == Path.home() / expected


def test_a_tilde_is_the_home_folder() -> None:
    assert cache_folder({"CHAIRLIFT_CACHE": "~/models"}) == Path.home() / "models"


@pytest.mark.parametrize("value", ["relative/folder", "{file}"])
def test_a_bad_value_fails_loudly(tmp_path: Path, value: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ModelSourceError, match="CHAIRLIFT_CACHE=.* must be the absolute path"):
        cache_folder({"CHAIRLIFT_CACHE": value.format(file=file)})
