"""One loaded model, an engine for each batching policy: nothing but the scheduler differs."""

from __future__ import annotations

import dataclasses

from chairlift.config import BatchingPolicyName, EngineConfig, SchedulerConfig
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel

POLICIES: tuple[BatchingPolicyName, ...] = ("static", "dynamic", "continuous")
DEFAULT_WAIT_MS = SchedulerConfig().batch_wait_ms


def policy_config(
    model: LoadedModel,
    policy: BatchingPolicyName,
    *,
    num_seats: int,
    batch_wait_ms: float = DEFAULT_WAIT_MS,
) -> SchedulerConfig:
    """The model's scheduler options with this policy and `num_seats` seats."""
    return dataclasses.replace(
        model.resolved.scheduler,
        batching_policy=policy,
        max_num_seqs=num_seats,
        static_batch_size=num_seats,
        batch_wait_ms=batch_wait_ms,
    )


def policy_engine(model: LoadedModel, asked: EngineConfig, scheduler: SchedulerConfig) -> Engine:
    """An engine on `model`.  One at a time: they share the model's KV cache.

    Prefix caching is off, for what one run leaves behind must not help the next.
    """
    resolved = dataclasses.replace(model.resolved, scheduler=scheduler, enable_prefix_caching=False)
    cost = dataclasses.replace(model.cost)
    return Engine(dataclasses.replace(model, resolved=resolved, cost=cost), asked)
