"""Where state is kept, by what the environment says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chairlift.errors import ConfigError
from chairlift.state_folder import state_folder


def test_the_folder_of_the_desktop_standard() -> None:
    assert state_folder({"XDG_STATE_HOME": "/somewhere"}) == Path("/somewhere/chairlift")


@pytest.mark.parametrize("given", ["", "relative/folder"])
def test_what_is_no_absolute_path_is_ignored(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    expected = Path("/home/me/.local/state/chairlift")
    assert state_folder({"XDG_STATE_HOME": given}) == expected


def test_other_systems_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert state_folder({}) == Path("/home/me/Library/Application Support/chairlift")
    monkeypatch.setattr(sys, "platform", "win32")
    assert state_folder({}) == Path("/home/me/AppData/Local/chairlift/state")
    assert state_folder({"LOCALAPPDATA": "/local"}) == Path("/local/chairlift/state")


def test_an_unknown_home_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="XDG_STATE_HOME") as error:
        state_folder({})
    assert error.value.field == "store"
