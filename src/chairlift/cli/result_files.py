"""Writes what a benchmark has measured: JSON always, a picture where matplotlib is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chairlift.cli.terminal import note, show
from chairlift.errors import ConfigError


def write_json(content: dict[str, Any], path: Path) -> None:
    """Raises `ConfigError` where it cannot write."""
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise _cannot_write(path, error) from None
    show(f"wrote {path}")


def write_plot(draw: Callable[[Path], None], path: Path) -> None:
    """Draw, or say what is missing.  Raises `ConfigError` where it cannot write."""
    try:
        draw(path)
    except ImportError:
        note("no picture: matplotlib is missing; pip install 'chairlift[plot]'")
    except OSError as error:
        raise _cannot_write(path, error) from None
    else:
        show(f"wrote {path}")


def check_writable(path: Path) -> None:
    """Raises `ConfigError` before anything is measured that could not be written."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write {path}: {error.strerror}")
