"""A tiny model that is loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel, load_model
from parity.tiny_checkpoints import make_tiny_checkpoint


@pytest.fixture(scope="session")
def bench_asked(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder: Path = tmp_path_factory.mktemp("bench_model")
    make_tiny_checkpoint("qwen2", folder)
    return EngineConfig(model=str(folder), max_num_seqs=32, kv_cache_memory="32MiB", threads=1)


@pytest.fixture(scope="session")
def bench_model(bench_asked: EngineConfig) -> LoadedModel:
    return load_model(bench_asked)
