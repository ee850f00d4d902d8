"""One stream of tokens, as the scheduler sees it: integers and a state.

There is no prefill or decode state.  `num_computed_tokens` catches up with the tokens that are
known (and those still being sampled); a step computes some of the difference.

```
token_ids   | prompt ............ | output .... | (pending)
            0            num_prompt_tokens   num_tokens   num_tokens + num_pending_tokens
            |--- keys and values stored ---|
                                 num_computed_tokens
```
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.core.prefix_cache import PrefixParent
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams

UNSEATED_RANK = 1 << 62
"""Under fair shares, ranks of requests that have never been let on begin here."""


class RequestStatus(enum.IntEnum):
    """Finished states come last, so that `is_finished` is one comparison."""

    WAITING = 0
    PREEMPTED = 1
    """Waiting again; some blocks may have been kept."""
    SWAPPED = 2
    """The tail of its keys and values lies in the swap pool."""
    RUNNING = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH = 5
    FINISHED_ABORTED = 6
    FINISHED_ERROR = 7


FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
}


@dataclass(slots=True, eq=False)
class Request:
    """A token stream with its place in memory.  Mutated by the scheduler and KV manager only."""

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    """Output tokens at most, already limited to what the context can hold.  0: it needs none, and
    ends when its prompt is computed."""
    stop_token_ids: frozenset[int] = frozenset()
    """The output ends with any of these (end tokens of the model included)."""
    priority: int = 0
    """Lower goes first, under the priority order."""
    arrival_time: float = 0.0
    fork_of: str | None = None
    """The sibling of the same prompt whose blocks this one may share."""
    cache_salt: str = ""
    """Requests with different salts never share cached blocks."""
    tenant: str = ""
    """Whose it is: tenants share the engine fairly, where that is asked for."""
    use_prefix_cache: bool = True
    """False where every prompt position must be computed: for its log probabilities or a mean."""
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    """For the runner; the scheduler does not look inside."""
    pooling_params: PoolingParams | None = None
    """For the runner: what its prompt is computed for, if that is no token."""
    seed: int = 0
    """Resolved: the request's own, or one drawn for it."""
    choice_index: int = 0
    """Which of the prompt's completions this is: part of the key of its random numbers."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    grammar: object | None = None
    """Compiled, for the runner: what the text must look like."""

    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    num_pending_tokens: int = 0
    """Sampled in a step that has been submitted and not yet read."""
    num_cached_tokens: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""
    num_charged_tokens: int = 0
    """Prompt tokens up to which its tenant has been charged, under fair shares."""
    num_preemptions: int = 0
    num_recomputes: int = 0
    block_table: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    """Swap-pool blocks that continue `block_table` while the request is swapped out."""
    prefix_nodes: list[PrefixParent] = field(default_factory=list)
    """The prefix cache's nodes of its leading blocks, as far as they are registered."""
    rank: tuple[int, int] = (0, 0)
    """Place in line: smaller goes first, and is preempted last."""
    stop_reason: int | str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def is_ranked(self) -> bool:
        """Its place in line is its rank: always, unless fair shares decide whom to let on."""
        return self.rank[1] < UNSEATED_RANK

    def is_of_worse_class_than(self, other: Request) -> bool:
        """Of priority: whatever the order within a class."""
        return self.rank[0] > other.rank[0]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def cache_parent(self) -> PrefixParent:
        """Where its next full block hangs in the prefix cache."""
        return self.prefix_nodes[-1] if self.prefix_nodes else self.cache_salt

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens known or pending whose keys and values are not stored yet."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def num_max_tokens(self) -> int:
        """Longest the stream can become whose keys and values must be kept."""
        return self.num_prompt_tokens + max(0, self.max_tokens - 1)

    @property
    def is_finished(self) -> bool:
        return self.status >= RequestStatus.FINISHED_STOPPED

    @property
    def is_prefilling(self) -> bool:
        """More than the newest token is to be computed."""
        return self.num_remaining_tokens > 1 or self.num_computed_tokens < self.num_prompt_tokens

    @property
    def is_all_sampled(self) -> bool:
        """Tokens in flight will be its last: there is nothing left to schedule."""
        return self.num_output_tokens + self.num_pending_tokens >= self.max_tokens

    @property
    def finish_reason(self) -> str | None:
        return FINISH_REASONS.get(self.status)
