"""`chairlift pull`: get a model, and say where it is."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def pull(
    name: Annotated[
        str, typer.Argument(help="smollm2, or org/name of the Hugging Face hub, :Q4_K_M for a GGUF")
    ],
) -> None:
    """Download a model unless it is there, and print its path."""
    from chairlift.cli.terminal import note, show, size_text
    from chairlift.weights.model_source import pull as pull_model

    path = pull_model(name, progress=sys.stderr.isatty())
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    show(str(path))
    note(size_text(sum(item.stat().st_size for item in files)))
