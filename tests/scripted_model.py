"""A real server whose model writes what a test tells it to, one byte per token."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chairlift.config import EngineConfig
from chairlift.core.scheduler_output import SampledToken
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel, kv_block
from chairlift.runner.kv_cache import KVCache
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.model_runner import ModelRunner
from chairlift.runner.sampler import SamplerOutput
from engines import make_engine
from http_harness import RunningServer, serving_engine
from parity.tiny_checkpoints import EOS_TOKEN_ID


class ScriptedModel:
    """A server, and what its model is to write."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.token_ids: list[int] = []

    def writes(self, text: str, *, parse_special: bool = False) -> None:
        """From now on, and then ends.  `parse_special`: control tokens are written as such."""
        tokenizer = self.server.engine.model.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        self.token_ids = [*ids, EOS_TOKEN_ID]

    def sample(self, head: Any, states: Sequence[RequestSamplingState]) -> Any:
        ids = self.token_ids
        tokens = [SampledToken(token_id=ids[state.num_output_tokens]) for state in states]
        return SamplerOutput(tokens=list(tokens), errors={})


def roomy_copy(folder: Path, target: Path) -> Path:
    """A copy of a tiny checkpoint with a context of 4096 tokens."""
    shutil.copytree(folder, target)
    path = target / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 4096}))
    return target


def engine_of_its_own(model: LoadedModel, num_blocks: int = 1000) -> Engine:
    """With a runner and a KV cache that no other engine over this model has."""
    decoder, block_size = model.runner.model, model.resolved.memory.block_size
    blocks = kv_block(EngineConfig(block_size=block_size), model.config, decoder.kernels)
    cache = KVCache(blocks, num_blocks=num_blocks, num_swap_blocks=10, swap_path=None)
    runner = ModelRunner(decoder, cache, block_size)
    model = dataclasses.replace(model, runner=runner)
    return make_engine(model, num_blocks=num_blocks, num_swap_blocks=10)


@contextmanager
def scripted_model(build: Callable[..., Engine], **options: Any) -> Iterator[ScriptedModel]:
    """`options` are the server's."""
    with serving_engine(build, **options) as server:
        model = ScriptedModel(server)
        server.engine.model.runner._sampler.sample = model.sample  # type: ignore[method-assign]
        yield model
