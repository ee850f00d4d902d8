"""Where downloaded models and measurements are kept on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from chairlift.errors import ModelSourceError

CACHE_VARIABLE = "CHAIRLIFT_CACHE"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache folder, which need not exist yet.

    `$CHAIRLIFT_CACHE`, else `$XDG_CACHE_HOME/chairlift`, else what the system provides for.
    Raises ModelSourceError when `$CHAIRLIFT_CACHE` is not an absolute path or names a file.
    """
    chosen = environ.get(CACHE_VARIABLE)
    if chosen:
        folder = _expand_home(chosen)
        if not folder.is_absolute() or (folder.exists() and not folder.is_dir()):
            raise ModelSourceError(
                f"CHAIRLIFT_CACHE={chosen} must be the absolute path of a folder"
            )
        return folder
    shared = environ.get("XDG_CACHE_HOME")
    # By its specification a relative XDG_CACHE_HOME is to be ignored.
    if shared and Path(shared).is_absolute():
        return Path(shared) / "chairlift"
    if sys.platform == "darwin":
        return _expand_home("~/Library/Caches/chairlift")
    if sys.platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else _expand_home("~/AppData/Local")) / "chairlift" / "cache"
    return _expand_home("~/.cache/chairlift")


def _expand_home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        message = f"the home folder of {text} is unknown; set CHAIRLIFT_CACHE to a folder"
        raise ModelSourceError(message) from None
