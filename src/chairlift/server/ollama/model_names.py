"""Names of models as Ollama's clients write them: with a tag, which is `latest` if nothing else."""

from __future__ import annotations

from chairlift.server.served_model import ServedModel

_LATEST = ":latest"


def listed_name(name: str) -> str:
    """A served name as lists of models show it."""
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


def name_here(asked: str, served: ServedModel) -> str:
    """The served name that is meant; what was asked for if there is none."""
    for name in (asked, asked.removesuffix(_LATEST), asked + _LATEST):
        if name in served.names:
            return name
    return asked
