"""A model of throughput: effective batch / time per step, fitted on this machine's own steps.

```
step = base + per_token * new tokens + per_pair * query-key pairs + per_sample * sampled rows
```

The coefficients are seconds and not negative; they are fitted by relative least squares.  What a
policy makes of a workload is not a formula: the engine's own scheduler runs over the model, on a
clock that jumps (`predict`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chairlift.bench.drive import CoreTarget, Feed, drive
from chairlift.bench.policy_run import PolicyRun
from chairlift.clock import ManualClock
from chairlift.config import SchedulerConfig
from chairlift.core.engine_core import EngineCore
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RunnerOutput, SampledToken, SchedulerOutput
from chairlift.errors import ChairliftError
from chairlift.events import StepRecord

_NUM_COEFFICIENTS = 4
_KEPT_SHARE = 0.9
"""Of the steps, by residual: the rest were disturbed by something else on the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """Seconds that a step takes."""

    base_s: float
    """Whatever the batch: reading the weights, bookkeeping."""
    per_token_s: float
    per_pair_s: float
    per_sample_s: float
    num_steps: int = 0
    """That it was fitted on."""
    mean_error: float = 0.0
    """Mean of |predicted - measured| / measured over those steps."""

    def step_s(self, num_tokens: int, attention_pairs: int, num_sampled: int) -> float:
        return (
            self.base_s
            + self.per_token_s * num_tokens
            + self.per_pair_s * attention_pairs
            + self.per_sample_s * num_sampled
        )

    def describe(self) -> str:
        return (
            f"step = {self.base_s * 1e3:.1f} ms + {self.per_token_s * 1e3:.2f} ms a token"
            f" + {self.per_pair_s * 1e6:.2f} us a query-key pair"
            f" + {self.per_sample_s * 1e3:.2f} ms a sampled row"
            f"  ({self.num_steps} steps, mean error {self.mean_error:.0%})"
        )


def fit_step_time(records: Sequence[StepRecord]) -> StepTimeModel:
    """Fit on steps of different sizes.  Raises `ChairliftError` if there are too few."""
    busy = [record for record in records if record.members and record.error is None]
    if len(busy) < 2 * _NUM_COEFFICIENTS:
        raise ChairliftError(f"a step-time model needs more than {len(busy)} steps to be fitted on")
    features = np.array([_features(record) for record in busy], dtype=np.float64)
    times = np.array([record.duration_s for record in busy], dtype=np.float64)
    coefficients = _fit(features, times)
    errors = np.abs(features @ coefficients / times - 1)
    kept = errors <= np.quantile(errors, _KEPT_SHARE)
    coefficients = _fit(features[kept], times[kept])
    errors = np.abs(features @ coefficients / times - 1)
    base_s, per_token_s, per_pair_s, per_sample_s = map(float, coefficients)
    return StepTimeModel(
        base_s=base_s,
        per_token_s=per_token_s,
        per_pair_s=per_pair_s,
        per_sample_s=per_sample_s,
        num_steps=len(busy),
        mean_error=float(errors.mean()),
    )


def predict(
    model: StepTimeModel,
    scheduler: SchedulerConfig,
    *,
    num_blocks: int,
    block_size: int,
    feed: Feed,
) -> PolicyRun:
    """What the engine's scheduler would make of a workload if steps took what `model` says."""
    clock = ManualClock()
    kv_cache_manager = KVCacheManager(num_blocks, block_size, enable_prefix_caching=False)
    core = EngineCore(
        Scheduler(scheduler, kv_cache_manager), SimulatedExecutor(model, clock), clock
    )
    return drive(CoreTarget(core), feed)


class SimulatedExecutor:
    """Spends a step's time on a clock that jumps, and yields tokens without a meaning."""

    overlap_depth = 0

    def __init__(self, model: StepTimeModel, clock: ManualClock) -> None:
        self._model = model
        self._clock = clock

    def submit(self, output: SchedulerOutput) -> SimulatedStep:
        items = output.scheduled
        sampled = [item.request_id for item in items if item.is_sampling]
        if items:
            pairs = sum(
                query_key_pairs(item.num_computed_tokens, item.num_new_tokens) for item in items
            )
            self._clock.advance(self._model.step_s(output.num_tokens, pairs, len(sampled)))
        return SimulatedStep(
            RunnerOutput(sampled={request_id: SampledToken(token_id=0) for request_id in sampled})
        )


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A `StepHandle` whose result is there already."""

    output: RunnerOutput

    def result(self) -> RunnerOutput:
        return self.output


def _features(record: StepRecord) -> tuple[float, ...]:
    num_tokens = record.num_prefill_tokens + record.num_decode_tokens + record.num_padding_tokens
    return (1.0, num_tokens, record.attention_pairs, record.num_sampled_tokens)


def query_key_pairs(num_computed: int, num_new: int) -> int:
    """Each new token attends to all before it and to itself."""
    return num_new * num_computed + num_new * (num_new + 1) // 2


def _fit(
    features: npt.NDArray[np.float64], times: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Non-negative least squares of features / times against 1.

    The best non-negative solution is the plain one on its own support, and four coefficients have
    but fifteen supports: try them all.
    """
    relative = features / times[:, None]
    best, best_residual = np.zeros(features.shape[1]), np.inf
    for size in range(1, features.shape[1] + 1):
        for support in itertools.combinations(range(features.shape[1]), size):
            columns = relative[:, support]
            scale = np.linalg.norm(columns, axis=0)
            if not scale.all():
                continue
            part = np.linalg.lstsq(columns / scale, np.ones(len(times)), rcond=None)[0] / scale
            residual = float(np.square(columns @ part - 1).sum())
            if (part >= 0).all() and residual < best_residual:
                best, best_residual = np.zeros(features.shape[1]), residual
                best[list(support)] = part
    return best
