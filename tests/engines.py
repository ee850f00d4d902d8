"""Builds engines for tests: many small ones over one loaded model, and a way to drive them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import chairlift.engine.engine as engine_module
from chairlift.config import EngineConfig
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import SchedulerOutput
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.outputs import RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams


def load(path: Path, *, kernels: str = "auto", **options: Any) -> LoadedModel:
    """A model with a KV cache that is small enough for any machine and large enough for tests."""
    asked = EngineConfig(
        model=str(path),
        kernels=kernels,
        seed=0,
        **{
            "kv_cache_memory": "1GiB",
            "swap_space": 0.25,
            "scheduling_policy": "priority",  # or a pool for everybody would get no swap space
            "threads": 2,
            **options,
        },
    )
    return load_model(asked)


def make_engine(
    model: LoadedModel,
    *,
    num_blocks: int | None = None,
    num_swap_blocks: int | None = None,
    enable_prefix_caching: bool = True,
    scheduler_class: type[Scheduler] = Scheduler,
    **scheduler_options: Any,
) -> Engine:
    """An engine of its own over a loaded model, with other options for its scheduler."""
    resolved = model.resolved
    memory = dataclasses.replace(
        resolved.memory,
        num_blocks=num_blocks or resolved.memory.num_blocks,
        num_swap_blocks=(
            resolved.memory.num_swap_blocks if num_swap_blocks is None else num_swap_blocks
        ),
    )
    resolved = dataclasses.replace(
        resolved,
        memory=memory,
        enable_prefix_caching=enable_prefix_caching,
        scheduler=dataclasses.replace(
            resolved.scheduler,
            **{"batch_wait_ms": 5.0, "scheduling_policy": "fcfs", **scheduler_options},
        ),
    )
    model = dataclasses.replace(model, resolved=resolved, cost=dataclasses.replace(model.cost))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "Scheduler", scheduler_class)
        return Engine(model, EngineConfig(seed=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prompt with its options, and the step before which it arrives."""

    prompt: Any
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_step: int = 0
    priority: int = 0
    tenant: str = ""
    pooling: PoolingParams | None = None
    """Its vector is wanted, and no token."""

    def add_to(self, engine: Engine) -> str:
        """Put it in line; its request id."""
        if self.pooling is None:
            return engine.add_request(
                self.prompt, self.params, priority=self.priority, tenant=self.tenant
            )
        return engine.add(
            engine.process_embedding(
                self.prompt, self.pooling, priority=self.priority, tenant=self.tenant
            )
        )


def run_jobs(
    engine: Engine,
    jobs: Sequence[Job],
    *,
    before_step: Callable[[int], None] = lambda step: None,
    max_steps: int = 100_000,
) -> list[RequestOutput]:
    """Run jobs to their ends, each arriving when its step has come; outputs in their order."""
    outputs: dict[str, RequestOutput] = {}
    ids: dict[int, str] = {}
    for step in range(max_steps):
        for index, job in enumerate(jobs):
            if index not in ids and job.arrival_step <= step:
                ids[index] = job.add_to(engine)
        if len(outputs) == len(jobs):
            break
        before_step(step)
        if engine.has_unfinished_requests:
            for output in engine.step():
                if output.finished:
                    assert output.request_id not in outputs, "a request ended twice"
                    outputs[output.request_id] = output
    assert len(outputs) == len(jobs), "the engine did not end"
    engine.scheduler.check_integrity()
    return [outputs[ids[index]] for index in range(len(jobs))]


def tokens_of(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    """Token ids by request and completion."""
    return [[list(completion.token_ids) for completion in out.outputs] for out in outputs]


class RandomPreemption(Scheduler):
    """Takes memory back at random steps although nobody needs it, a limited number of times."""

    probability = 0.3
    random = random.Random(0)
    num_left = 12

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._settle = self.seat_claims.settle
        self.seat_claims.settle = self._settle_and_preempt  # type: ignore[method-assign]

    def _settle_and_preempt(self, output: SchedulerOutput) -> None:
        self._settle(output)
        victims = [request for request in self.running if not request.is_finished]
        if victims and self.num_left and self.random.random() < self.probability:
            self.num_left -= 1
            victim = self.random.choice(victims)
            num_blocks = self.random.randint(0, len(victim.block_table))
            self.preemptor.take_back(victim, num_blocks, output, "for the test")


@contextmanager
def preempting(seed: int, probability: float = 0.3) -> Iterator[type[Scheduler]]:
    """A scheduler class that preempts at random steps, repeatably."""
    yield type(
        "SeededPreemption",
        (RandomPreemption,),
        {"random": random.Random(seed), "probability": probability},
    )
