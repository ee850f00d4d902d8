"""The record of every step: who rode in it, what it cost, and why things were done.

The engine writes one `StepRecord` per step; pages, models of throughput, the simulator and the
question "why is my request waiting?" all read these and nothing else.  Everything here is plain
data that turns into one JSON line.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

StepKind = Literal["prefill", "decode", "mixed", "idle"]
MemberKind = Literal["prefill", "decode", "padding"]
PreemptionMode = Literal["recompute", "swap"]
AdmissionLimit = Literal[
    "arrivals",
    "max_num_seqs",
    "max_num_batched_tokens",
    "blocks",
    "batching_policy",
    "prefill_policy",
    "long_prefill",
]
"""What kept the next request out: "arrivals" means that nobody was waiting."""


@dataclass(frozen=True, slots=True)
class StepMember:
    """One request's part in a step."""

    request_id: str
    kind: MemberKind
    num_computed_tokens: int
    """Tokens whose keys and values were stored before the step."""
    num_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Memory taken back from one request, and the estimate that chose how."""

    request_id: str
    mode: PreemptionMode
    num_blocks: int
    """Device blocks that this gave back."""
    num_blocks_kept: int
    num_tokens_dropped: int
    """Tokens to compute again (recompute) or to copy back (swap)."""
    swap_cost_s: float
    recompute_cost_s: float
    reason: str
    """For whom the memory was needed, and why this mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One schedule-execute-update round.  Times in seconds, sizes in tokens or blocks."""

    step_id: int
    start_s: float
    """On the engine's clock."""
    schedule_s: float
    execute_s: float
    update_s: float
    members: tuple[StepMember, ...]
    num_prefill_tokens: int
    num_decode_tokens: int
    num_padding_tokens: int
    num_sampled_tokens: int
    context_tokens: int
    """Sum of the members' context lengths after the step."""
    attention_pairs: int
    """Query-key pairs computed."""
    num_free_blocks: int
    """Free or only cached, after scheduling."""
    num_blocks: int
    num_waiting: int
    num_running: int
    num_swapped: int
    num_swapped_out_blocks: int
    num_swapped_in_blocks: int
    num_copied_blocks: int
    swap_bytes: int
    admitted: tuple[str, ...]
    finished: tuple[tuple[str, str], ...]
    """(request_id, finish reason) of those that ended in this step."""
    preemptions: tuple[Preemption, ...]
    limit: AdmissionLimit
    error: str | None = None
    """What a failed step raised."""

    @property
    def kind(self) -> StepKind:
        if self.num_prefill_tokens and self.num_decode_tokens + self.num_padding_tokens:
            return "mixed"
        if self.num_prefill_tokens:
            return "prefill"
        return "decode" if self.members else "idle"

    @property
    def duration_s(self) -> float:
        return self.schedule_s + self.execute_s + self.update_s

    def to_json(self) -> str:
        """One line of JSON, keys as the fields above and `kind`."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, separators=(",", ":"))
