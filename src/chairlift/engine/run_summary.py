"""What a run of the engine came to, in one line: speed, batch, and the limit that held it back."""

from __future__ import annotations

import logging
from collections import Counter

from chairlift.events import AdmissionLimit, StepRecord

logger = logging.getLogger("chairlift")

_LIMITS: dict[AdmissionLimit, str] = {
    "arrivals": "arrivals (nobody was waiting)",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "blocks": "KV cache blocks",
    "batching_policy": "the batching policy",
    "prefill_policy": "the prefill policy",
    "long_prefill": "a long prompt being prefilled",
}


class RunSummary:
    """Adds up step records.  `take()` tells and starts again."""

    def __init__(self) -> None:
        self._reset()

    def add(self, record: StepRecord) -> None:
        """Book one step; preemptions are logged as they happen."""
        self._num_steps += 1
        self._num_members += sum(member.kind != "padding" for member in record.members)
        self._num_input += record.num_prefill_tokens
        self._num_output += record.num_sampled_tokens
        self._duration_s += record.duration_s
        self._limits[record.limit] += 1
        self._num_preemptions += len(record.preemptions)
        for preemption in record.preemptions:
            logger.info(
                "preempted %s by %s: %d blocks, %d tokens; estimated swap %.1f ms, recompute"
                " %.1f ms (%s)",
                preemption.request_id,
                preemption.mode,
                preemption.num_blocks,
                preemption.num_tokens_dropped,
                preemption.swap_cost_s * 1e3,
                preemption.recompute_cost_s * 1e3,
                preemption.reason,
            )

    def take(self) -> str:
        """The line for the steps since the last call."""
        duration_s = max(self._duration_s, 1e-9)
        steps = max(1, self._num_steps)
        limit = self._limits.most_common(1)
        line = (
            f"{self._num_input} tokens in, {self._num_output} out in {self._num_steps} steps and"
            f" {self._duration_s:.2f} s: {self._rate(duration_s)}; mean batch"
            f" {self._num_members / steps:.1f}, {self._num_preemptions} preemptions"
        )
        if limit:
            line += f"; what kept more requests out: {_LIMITS[limit[0][0]]}"
        self._reset()
        return line

    def _rate(self, duration_s: float) -> str:
        """Of what the run was for: tokens, or vectors of prompts."""
        if self._num_output:
            return f"{self._num_output / duration_s:.1f} tokens/s"
        return f"{self._num_input / duration_s:.1f} tokens/s in"

    def _reset(self) -> None:
        self._num_steps = self._num_members = self._num_preemptions = 0
        self._num_input = self._num_output = 0
        self._duration_s = 0.0
        self._limits: Counter[AdmissionLimit] = Counter()
