"""Maps a file into memory for reading, with one clear error for whatever stands in the way."""

from __future__ import annotations

import mmap
import stat
from contextlib import suppress
from pathlib import Path

from chairlift.errors import ModelFileError


def map_file(path: Path, *, min_bytes: int) -> mmap.mmap:
    """The regular file `path` of at least `min_bytes`, mapped read-only.

    Raises ModelFileError.  NOTE: a file that another program shortens while it is mapped takes the
    process down when the lost part is touched; model files are replaced, never shortened.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for a writer for ever.
            raise ModelFileError(f"{path}: this is not a regular file")
        if status.st_size < min_bytes:
            raise ModelFileError(f"{path}: {status.st_size} bytes are too few; the file is cut")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None


def unmap(mappings: list[mmap.mmap]) -> None:
    """Close `mappings`.  One that a live array still looks into goes when that array does."""
    for data in mappings:
        with suppress(BufferError):
            data.close()
