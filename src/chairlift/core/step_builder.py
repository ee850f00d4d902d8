"""The step in the making: who rides with how many tokens, and what the runner has to be told."""

from __future__ import annotations

from chairlift.core.fair_share import FairShare
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.request import Request
from chairlift.core.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from chairlift.events import MemberKind


class StepBuilder:
    """Enters requests into a step and advances their counters."""

    def __init__(self, kv: KVCacheManager, *, long_prefill_token_threshold: int) -> None:
        self.fair_share: FairShare | None = None
        """Charged with what is computed, if tenants share fairly."""
        self._kv = kv
        self._max_chunk_tokens = long_prefill_token_threshold
        self._known: set[str] = set()
        """Requests of which the runner has been told."""
        self._forgotten: list[str] = []
        self._next_step_id = 0

    @property
    def num_known(self) -> int:
        """Requests that the runner has been told of and may not forget yet."""
        return len(self._known)

    def begin(self) -> SchedulerOutput:
        return SchedulerOutput(step_id=self._next_step_id)

    def add_chunk(self, output: SchedulerOutput, request: Request, budget: int) -> int:
        """As much of a prompt as the budget allows; returns the tokens used."""
        limit = self._max_chunk_tokens or budget
        num_tokens = min(request.num_remaining_tokens, budget, limit)
        if num_tokens <= 0:
            return 0
        if self.fair_share is not None:
            _charge_prompt(self.fair_share, request, num_tokens)
        self._introduce(request, output)
        self._add(output, request, num_tokens, "prefill")
        return num_tokens

    def add_decode(self, output: SchedulerOutput, request: Request) -> None:
        """The newest token of a request that has its prompt behind it."""
        self._add(output, request, 1, "decode")

    def add_padding(self, output: SchedulerOutput, request: Request) -> None:
        """One that has finished and is held computes its last token again."""
        output.scheduled.append(
            ScheduledRequest(
                request.request_id,
                "padding",
                request.num_computed_tokens - 1,
                1,
                request.block_table,
                False,
            )
        )

    def forget(self, request: Request) -> None:
        """It has gone: the runner is told so with the next step."""
        if request.request_id in self._known:
            self._known.discard(request.request_id)
            self._forgotten.append(request.request_id)

    def seal(self, output: SchedulerOutput) -> SchedulerOutput:
        """Give the step its number and its block moves, if there is anything to do."""
        output.moves = self._kv.take_moves()
        output.num_free_blocks = self._kv.num_free_blocks
        output.finished_request_ids, self._forgotten = self._forgotten, []
        if output.has_work:
            self._next_step_id += 1
            self._kv.step_submitted(output.step_id)
        return output

    def _add(
        self, output: SchedulerOutput, request: Request, num_tokens: int, kind: MemberKind
    ) -> None:
        reaches_end = num_tokens == request.num_remaining_tokens
        is_sampling = reaches_end and request.max_tokens > 0
        output.scheduled.append(
            ScheduledRequest(
                request.request_id,
                kind,
                request.num_computed_tokens,
                num_tokens,
                request.block_table,
                is_sampling,
            )
        )
        request.num_computed_tokens += num_tokens
        request.num_pending_tokens += is_sampling
        if is_sampling and self.fair_share is not None:
            self.fair_share.charge_output(request.tenant)

    def _introduce(self, request: Request, output: SchedulerOutput) -> None:
        """Nobody rides for the first time without a chunk of a prompt."""
        if request.request_id in self._known:
            return
        self._known.add(request.request_id)
        output.new_requests.append(
            NewRequest(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                stop_token_ids=request.stop_token_ids,
                sampling_params=request.sampling_params,
                pooling_params=request.pooling_params,
                seed=request.seed,
                choice_index=request.choice_index,
                bad_word_ids=request.bad_word_ids,
                grammar=request.grammar,
            )
        )


def _charge_prompt(fair_share: FairShare, request: Request, num_tokens: int) -> None:
    """Book what is new of a prompt's chunk for the tenant: what is recomputed is not."""
    end = min(request.num_computed_tokens + num_tokens, request.num_prompt_tokens)
    num_new = end - max(request.num_computed_tokens, request.num_charged_tokens)
    if num_new > 0:
        request.num_charged_tokens = end
        fair_share.charge_prompt(request.tenant, num_new)
