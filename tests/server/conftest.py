"""Servers over the tiny model: one for tests that change nothing, and others to order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel, kv_block
from chairlift.runner.kv_cache import KVCache
from chairlift.runner.model_runner import ModelRunner
from chairlift.server import http_protocol
from engines import make_engine
from http_harness import RunningServer, serving_engine

Load = Callable[..., LoadedModel]
Serve = Callable[..., AbstractContextManager[RunningServer]]

ENGINE_OPTIONS = {"num_blocks": 200, "num_swap_blocks": 50, "max_num_seqs": 32}


@pytest.fixture(scope="session", autouse=True)
def patient_servers() -> Iterator[None]:
    """A machine that is stopped for a while makes no slow clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_protocol, "HEADER_TIMEOUT_S", 300.0)
        yield


@pytest.fixture(scope="session")
def build_tiny(load_tiny: Load) -> Callable[..., Engine]:
    """build_tiny(max_num_seqs=2) -> a new engine over the tiny model, with its own KV cache."""

    def build(**options: Any) -> Engine:
        model, given = load_tiny(), {**ENGINE_OPTIONS, **options}
        decoder, block_size = model.runner.model, model.resolved.memory.block_size
        blocks = kv_block(EngineConfig(block_size=block_size), model.config, decoder.kernels)
        cache = KVCache(
            blocks,
            num_blocks=given["num_blocks"],
            num_swap_blocks=given["num_swap_blocks"],
            swap_path=None,
        )
        runner = ModelRunner(decoder, cache, block_size)
        return make_engine(dataclasses.replace(model, runner=runner), **given)

    return build


@pytest.fixture(scope="session")
def server(build_tiny: Callable[..., Engine]) -> Iterator[RunningServer]:
    """One for all tests that leave it as they found it."""
    with serving_engine(build_tiny) as running:
        yield running


@pytest.fixture
def serve(build_tiny: Callable[..., Engine]) -> Serve:
    """`with serve(engine={...}, api_key=("k",)) as server` -> one with options of its own."""

    def start(
        engine: dict[str, Any] | None = None,
        build: Callable[[], Engine] | None = None,
        **options: Any,
    ) -> AbstractContextManager[RunningServer]:
        return serving_engine(build or (lambda: build_tiny(**(engine or {}))), **options)

    return start
