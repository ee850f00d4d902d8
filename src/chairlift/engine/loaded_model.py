"""Opens a model and puts it behind an executor: checkpoint, tokenizer, kernels, memory, runner.

The memory plan comes before the weights: a setting that does not fit is an error in milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chairlift.config import EngineConfig
from chairlift.core.preemption_cost import PreemptionCost
from chairlift.engine.generation_defaults import GenerationDefaults, read_generation_defaults
from chairlift.engine.kernel_choice import choose_kernels
from chairlift.engine.pooling_choice import choose_pooling
from chairlift.engine.resolved_config import (
    ResolvedConfig,
    choose_num_threads,
    resolve_config,
)
from chairlift.engine.weight_plan import head_preparing_bytes, weights_by_kind
from chairlift.kernels.interface import Kernels, KvBlockFormat
from chairlift.machine import Machine, inspect_machine
from chairlift.models.decoder import load_decoder
from chairlift.models.model_config import ModelConfig
from chairlift.models.registry import read_model_config
from chairlift.pooling_params import DEFAULT_POOLING, PoolingType
from chairlift.runner.kv_cache import KVCache
from chairlift.runner.model_runner import ModelRunner
from chairlift.tokenizer.chat_template import ChatTemplate
from chairlift.tokenizer.tokenizer import Tokenizer
from chairlift.weights.checkpoint import Checkpoint, open_checkpoint
from chairlift.weights.model_source import resolve_model

logger = logging.getLogger("chairlift")

_PROBE_BLOCKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Everything that was opened for one engine."""

    path: Path
    name: str
    config: ModelConfig
    resolved: ResolvedConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: GenerationDefaults
    runner: ModelRunner
    cost: PreemptionCost
    pooling_type: PoolingType = DEFAULT_POOLING
    """Of embeddings that do not say how they want it."""

    @property
    def kernels_name(self) -> str:
        """Backend and instruction set."""
        return self.runner.model.kernels.name


def load_model(
    asked: EngineConfig,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    show_download: bool = False,
) -> LoadedModel:
    """Find, plan, load.  Raises a `ChairliftError` whose message is one line."""
    path = resolve_model(asked.model, progress=show_download)
    with open_checkpoint(path) as checkpoint:
        config = read_model_config(checkpoint.kind, checkpoint.metadata)
        defaults = read_generation_defaults(checkpoint.kind, checkpoint.metadata)
        tokenizer = _open_tokenizer(checkpoint, defaults)
        tokenizer.check_vocab_size(config.vocab_size)
        machine = inspect_machine()
        choice = choose_kernels(asked, checkpoint, config, choose_num_threads(asked, machine))
        kernels = choice.kernels
        resolved = plan_model(asked, config, machine, checkpoint, kernels)
        pooling = choose_pooling(asked.pooling_type, checkpoint.kind, checkpoint.metadata)
        for reason in (*resolved.reasons, *choice.reasons, pooling.reason):
            logger.info("%s", reason)
        decoder = load_decoder(
            config,
            checkpoint,
            kernels,
            max_position=resolved.memory.max_model_len,
            progress=progress,
        )
    memory = resolved.memory
    kv_cache = KVCache(
        kv_block(asked, config, kernels),
        num_blocks=memory.num_blocks,
        num_swap_blocks=memory.num_swap_blocks,
        swap_path=asked.swap_path,
    )
    if memory.is_preallocated:
        seconds = kv_cache.preallocate(resolved.num_threads)
        logger.info("KV cache committed in %.1f s", seconds)
    runner = ModelRunner(decoder, kv_cache, memory.block_size)
    return LoadedModel(
        path=path,
        name=asked.model,
        config=config,
        resolved=resolved,
        tokenizer=tokenizer,
        chat_template=_chat_template(tokenizer),
        defaults=defaults,
        runner=runner,
        cost=_measure_cost(runner, kv_cache, memory.num_swap_blocks),
        pooling_type=pooling.pooling_type,
    )


def _open_tokenizer(checkpoint: Checkpoint, defaults: GenerationDefaults) -> Tokenizer:
    if checkpoint.kind == "gguf":
        return Tokenizer.from_gguf(checkpoint.metadata, eos_ids=defaults.eos_ids)
    return Tokenizer.from_huggingface(checkpoint.path, eos_ids=defaults.eos_ids)


def _chat_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    if not tokenizer.chat_template:
        return None
    return ChatTemplate(
        tokenizer.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
    )


def plan_model(
    asked: EngineConfig,
    config: ModelConfig,
    machine: Machine,
    checkpoint: Checkpoint,
    kernels: Kernels,
) -> ResolvedConfig:
    """Decide everything, with the memory that a model takes on these kernels; loads nothing."""
    return resolve_config(
        asked,
        config,
        machine,
        block=kv_block(asked, config, kernels),
        weights=weights_by_kind(checkpoint, config, kernels),
        head_bytes=head_preparing_bytes(checkpoint, config, kernels),
        quant_compute=kernels.quant_compute,
    )


def kv_block(asked: EngineConfig, config: ModelConfig, kernels: Kernels) -> KvBlockFormat:
    """How the kernels store a block of the KV cache.  Raises `ConfigError` if they cannot."""
    return kernels.kv_block(
        config.num_layers, config.num_kv_heads, config.head_dim, asked.block_size
    )


def _measure_cost(runner: ModelRunner, kv_cache: KVCache, num_swap_blocks: int) -> PreemptionCost:
    """First rates for choosing between swap and recompute, from a few milliseconds of work."""
    cost = PreemptionCost(prefill_s_per_token=runner.measure_prefill())
    count = min(_PROBE_BLOCKS, num_swap_blocks, kv_cache.blocks.shape[0])
    if count:
        pairs = [(block, block) for block in range(count)]
        cost.swap_out_s_per_block = kv_cache.swap_out(pairs) / count
        cost.swap_in_s_per_block = kv_cache.swap_in(pairs) / count
    return cost
