"""Where what a server is to remember is kept on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from chairlift.errors import ConfigError


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's folder for state, which need not exist yet.

    `$XDG_STATE_HOME/chairlift`, else what the system provides for.  Raises `ConfigError` when the
    home folder is unknown.
    """
    shared = environ.get("XDG_STATE_HOME")
    # By its specification a relative XDG_STATE_HOME is to be ignored.
    if shared and Path(shared).is_absolute():
        return Path(shared) / "chairlift"
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "chairlift"
    if sys.platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else _home() / "AppData" / "Local") / "chairlift" / "state"
    return _home() / ".local" / "state" / "chairlift"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError(
            "the home folder is unknown; set XDG_STATE_HOME to a folder", field="store"
        ) from None
