"""Keeps the last step records in a ring and hands each to whoever listens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RequestUpdate, RunnerOutput, SchedulerOutput
from chairlift.events import StepMember, StepRecord

RING_SIZE = 4096


class StepRecorder:
    """The record of the last `ring_size` steps."""

    def __init__(self, ring_size: int = RING_SIZE) -> None:
        self.records: deque[StepRecord] = deque(maxlen=ring_size)
        self._listeners: list[Callable[[StepRecord], None]] = []

    def listen(self, listener: Callable[[StepRecord], None]) -> None:
        """Call `listener(record)` after every step, in the engine's thread."""
        self._listeners.append(listener)

    def record(
        self,
        output: SchedulerOutput,
        result: RunnerOutput,
        updates: list[RequestUpdate],
        scheduler: Scheduler,
        *,
        start_s: float,
        schedule_s: float,
        execute_s: float,
        update_s: float,
        error: str | None,
    ) -> None:
        """Add one step."""
        items = output.scheduled
        tokens = {"prefill": 0, "decode": 0, "padding": 0}
        context_tokens = attention_pairs = num_sampled = 0
        for item in items:
            new, end = item.num_new_tokens, item.num_computed_tokens + item.num_new_tokens
            tokens[item.kind] += new
            context_tokens += end
            attention_pairs += new * end - new * (new - 1) // 2
            num_sampled += item.is_sampling
        record = StepRecord(
            step_id=output.step_id,
            start_s=start_s,
            schedule_s=schedule_s,
            execute_s=execute_s,
            update_s=update_s,
            members=tuple(
                StepMember(i.request_id, i.kind, i.num_computed_tokens, i.num_new_tokens)
                for i in items
            ),
            num_prefill_tokens=tokens["prefill"],
            num_decode_tokens=tokens["decode"],
            num_padding_tokens=tokens["padding"],
            num_sampled_tokens=num_sampled,
            context_tokens=context_tokens,
            attention_pairs=attention_pairs,
            num_free_blocks=output.num_free_blocks,
            num_blocks=scheduler.kv.pool.num_usable_blocks,
            num_waiting=scheduler.num_waiting,
            num_running=len(scheduler.running),
            num_swapped=len(scheduler.swapped),
            num_swapped_out_blocks=len(output.moves.swap_outs),
            num_swapped_in_blocks=len(output.moves.swap_ins),
            num_copied_blocks=len(output.moves.copies),
            swap_bytes=result.swap_bytes,
            admitted=tuple(output.admitted),
            finished=tuple(
                (update.request_id, update.finish_reason)
                for update in updates
                if update.finish_reason is not None
            ),
            preemptions=tuple(output.preemptions),
            limit=output.limit,
            error=error,
        )
        self.records.append(record)
        for listener in self._listeners:
            listener(record)
