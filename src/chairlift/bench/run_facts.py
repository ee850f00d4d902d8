"""On what a measurement of the engine ran, for its JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from chairlift.bench.machine_facts import machine_facts
from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel


def run_facts(model: LoadedModel, asked: EngineConfig) -> dict[str, Any]:
    """The machine, the model as it was loaded, and the options that were asked for."""
    return {
        "machine": machine_facts(),
        "model": model.name,
        "kernels": model.runner.model.kernels.name,
        "num_threads": model.resolved.num_threads,
        "engine": dataclasses.asdict(asked),
    }
