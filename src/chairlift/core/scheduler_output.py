"""What passes between the scheduler, the executor and back: integers, names and tokens.

`SchedulerOutput` is one step's order; `RunnerOutput` is its result.  A request's prompt and options
are sent once, when it first rides; afterwards its tokens are known on both sides.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chairlift.core.kv_cache_manager import BlockMoves
from chairlift.events import AdmissionLimit, MemberKind, Preemption
from chairlift.outputs import PositionLogprobs
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """All that the runner must know of a request, once."""

    request_id: str
    prompt_token_ids: Sequence[int]
    stop_token_ids: frozenset[int]
    sampling_params: SamplingParams
    pooling_params: PoolingParams | None = None
    seed: int = 0
    choice_index: int = 0
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    grammar: object | None = None


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of the step: compute tokens [num_computed, num_computed + num_new)."""

    request_id: str
    kind: MemberKind
    num_computed_tokens: int
    num_new_tokens: int
    block_table: Sequence[int]
    """Read it before `submit()` returns: the scheduler goes on writing to it."""
    is_sampling: bool
    """The last of its tokens yields a new one."""


@dataclass(slots=True, kw_only=True)
class SchedulerOutput:
    """One step's order.  Moves are executed first: swap-outs, swap-ins, copies."""

    step_id: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    new_requests: list[NewRequest] = field(default_factory=list)
    finished_request_ids: list[str] = field(default_factory=list)
    """Gone since the last step: the runner forgets them before it looks at `new_requests`, since an
    id may be in use again.  It may never have heard of some, if a step failed."""
    moves: BlockMoves = field(default_factory=BlockMoves)
    admitted: list[str] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    limit: AdmissionLimit = "arrivals"
    num_free_blocks: int = 0
    needs_drain: bool = False
    """Memory is short and steps are in flight: they are read before the next one is scheduled."""

    @property
    def has_work(self) -> bool:
        """Something to compute, to move, to forget or to put on record."""
        return bool(self.scheduled or self.moves or self.finished_request_ids or self.preemptions)

    @property
    def num_tokens(self) -> int:
        return sum(item.num_new_tokens for item in self.scheduled)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """A request's new token, with what was asked to be known about it."""

    token_id: int
    logprobs: PositionLogprobs | None = None


@dataclass(slots=True, kw_only=True)
class RunnerOutput:
    """One step's result.  `errors` ends the requests it names and no others."""

    sampled: Mapping[str, SampledToken]
    prompt_logprobs: Mapping[str, Sequence[PositionLogprobs]] = field(default_factory=dict)
    """For the prompt positions that this step computed, in order."""
    pooled: Mapping[str, array[float]] = field(default_factory=dict)
    """Vectors (float32) of the prompts that are computed now and were asked for as such."""
    errors: Mapping[str, str] = field(default_factory=dict)
    execute_s: float = 0.0
    swap_out_s: float = 0.0
    swap_in_s: float = 0.0
    swap_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class RequestUpdate:
    """What a step changed for one request: goes to the output processor."""

    request_id: str
    new_token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    pooled: array[float] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    is_released: bool = False
    """Row and blocks are free: a static batch hands its answers over only now."""
