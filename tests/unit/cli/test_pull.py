"""`chairlift pull`: the path goes to standard output alone, so that scripts can use it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize("is_folder", [False, True])
def test_path_and_size(cli, monkeypatch, tmp_path: Path, is_folder: bool) -> None:
    path = tmp_path / "model.gguf"
    if is_folder:
        (path / "part").mkdir(parents=True)
        (path / "part" / "a").write_bytes(bytes(1024))
        (path / "b").write_bytes(bytes(512))
    else:
        path.write_bytes(bytes(1536))
    asked: list[tuple[str, bool]] = []

    def fake_pull(name: str, *, progress: bool) -> Path:
        asked.append((name, progress))
        return path

    monkeypatch.setattr("chairlift.weights.model_source.pull", fake_pull)
    assert cli("pull", "smollm2") == (0, f"{path}\n", "1.5 KiB\n")
    assert asked == [("smollm2", False)]
