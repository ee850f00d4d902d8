"""An executor without a model: its KV cache holds one integer per token, and it checks them all.

The integer of a token is a hash of the whole prefix up to it, as keys and values in a model depend
on the whole prefix.  Before a request samples, every position below its end must hold exactly what
its own tokens demand, so a wrong share, a stale copy, a missing swap or a block that was given away
too early fails at once.  Sampled tokens are a function of the same hash: `solo_tokens()` says what
a request must yield, whatever its company.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chairlift.clock import ManualClock
from chairlift.config import SchedulerConfig
from chairlift.core.engine_core import EngineCore
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemption_cost import PreemptionCost
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import (
    NewRequest,
    RequestUpdate,
    RunnerOutput,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
)
from chairlift.events import StepRecord
from chairlift.pooling_params import PoolingParams, PoolingType
from chairlift.sampling_params import SamplingParams

VOCAB_SIZE = 5
"""Small, so that different requests often write the same tokens."""
POISON = -1
_MODULUS = 2**61 - 1

FaultPoint = Literal["submit", "before_moves", "after_moves", "after_compute"]


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """The hash of a prefix that is one token longer."""
    return (prefix_hash * 1_000_003 + token_id + 17) % _MODULUS


def prefix_hashes(token_ids: Iterable[int]) -> list[int]:
    """The hash of each prefix of `token_ids`: what the slots of its positions must hold."""
    hashes: list[int] = []
    value = 1
    for token_id in token_ids:
        value = extend_hash(value, token_id)
        hashes.append(value)
    return hashes


def next_token(prefix_hash: int, seed: int) -> int:
    """The token that follows a prefix: depends on nothing else."""
    return ((prefix_hash ^ (seed * 0x9E3779B1)) * 0x2545F491 >> 13) % VOCAB_SIZE


def solo_tokens(
    prompt: Sequence[int], *, max_tokens: int, seed: int = 0, stop_token_ids: Iterable[int] = ()
) -> list[int]:
    """What a request yields when nobody else is there."""
    stops = frozenset(stop_token_ids)
    value = prefix_hashes(prompt)[-1]
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(next_token(value, seed))
        if output[-1] in stops:
            break
        value = extend_hash(value, output[-1])
    return output


def solo_vector(prompt: Sequence[int], pooling_type: PoolingType) -> list[float]:
    """What a request that needs no token yields: of the last prefix, or of all of them."""
    hashes = [float(value % 2**20) for value in prefix_hashes(prompt)]
    return [sum(hashes)] if pooling_type == "mean" else hashes[-1:]


def make_request(
    request_id: str,
    prompt: Sequence[int] | int,
    max_tokens: int = 4,
    *,
    seed: int = 0,
    stop_token_ids: Iterable[int] = (),
    priority: int = 0,
    arrival_time: float = 0.0,
    fork_of: str | None = None,
    cache_salt: str = "",
    tenant: str = "",
    pooling_type: PoolingType = "last",
) -> Request:
    """A request with a prompt, or with one of so many tokens that nobody else's begins like.

    One of which no token is wanted has a vector pooled.
    """
    if isinstance(prompt, int):
        first = sum((index + 1) * ord(char) for index, char in enumerate(request_id))
        prompt = [100 + first * 1000 + position for position in range(prompt)]
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        max_tokens=max_tokens,
        stop_token_ids=frozenset(stop_token_ids),
        priority=priority,
        arrival_time=arrival_time,
        fork_of=fork_of,
        cache_salt=cache_salt,
        tenant=tenant,
        use_prefix_cache=bool(max_tokens) or pooling_type == "last",
        sampling_params=SamplingParams(seed=seed, max_tokens=max(1, max_tokens)),
        pooling_params=None if max_tokens else PoolingParams(pooling_type=pooling_type),
    )


class FinishedStep:
    """A step whose result is known: `result()` hands it over or raises."""

    def __init__(self, output: RunnerOutput, error: Exception | None = None) -> None:
        self._output = output
        self._error = error

    def result(self) -> RunnerOutput:
        if self._error is not None:
            raise self._error
        return self._output


class FakeExecutor:
    """Runs steps on memory of integers.  With overlap depth 1 its answers are read a step late."""

    def __init__(
        self, num_blocks: int, num_swap_blocks: int, block_size: int, overlap_depth: int = 0
    ) -> None:
        self.overlap_depth = overlap_depth
        self.block_size = block_size
        self.memory = [[POISON] * block_size for _ in range(num_blocks)]
        self.host_memory = [[POISON] * block_size for _ in range(num_swap_blocks)]
        self.requests: dict[str, NewRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        """Prompt and output, tokens that nobody has read yet included."""
        self.fault: FaultPoint | None = None
        """Where the next step with members raises."""
        self.request_faults: set[str] = set()
        """Requests that end with an error of their own when they ride next."""
        self.steps: list[SchedulerOutput] = []
        self._hashes: dict[str, list[int]] = {}
        self._read: dict[str, list[float]] = {}
        """What the pooled vector of a request is made of, position by position."""
        self._broken: set[str] = set()

    @classmethod
    def for_cache(cls, kv: KVCacheManager, overlap_depth: int = 0) -> FakeExecutor:
        """One with as much memory as `kv` manages."""
        swap_blocks = kv.swap_pool.num_blocks
        return cls(kv.pool.num_blocks, swap_blocks, kv.block_size, overlap_depth)

    def submit(self, output: SchedulerOutput) -> FinishedStep:
        self.steps.append(output)
        fault, self.fault = (self.fault, None) if output.scheduled else (None, self.fault)
        for request_id in output.finished_request_ids:
            self._forget(request_id)
        for new in output.new_requests:
            assert new.request_id not in self.tokens, f"{new.request_id} is sent twice"
            self.requests[new.request_id] = new
            self.tokens[new.request_id] = list(new.prompt_token_ids)
            self._hashes[new.request_id] = prefix_hashes(new.prompt_token_ids)
        if fault is not None:
            self._broken.update(item.request_id for item in output.scheduled)
        if fault == "submit":
            raise RuntimeError("fault in submit")
        if fault != "before_moves":
            self._move(output)
        if fault in ("before_moves", "after_moves"):
            return FinishedStep(RunnerOutput(sampled={}), RuntimeError(f"fault {fault}"))
        result = self._compute(output)
        if fault is not None:
            return FinishedStep(result, RuntimeError(f"fault {fault}"))
        return FinishedStep(result)

    def poison_free(self, kv: KVCacheManager) -> None:
        """Spoil every block that nobody may read any more."""
        pool = kv.pool
        for block_id, slots in enumerate(self.memory):
            if pool.ref_count(block_id) == 0 and not pool.is_cached(block_id):
                slots[:] = [POISON] * self.block_size

    def _forget(self, request_id: str) -> None:
        for known in (self.requests, self.tokens, self._hashes, self._read):
            known.pop(request_id, None)
        self._broken.discard(request_id)

    def _move(self, output: SchedulerOutput) -> None:
        for block_id, host_block in output.moves.swap_outs:
            self.host_memory[host_block] = self.memory[block_id][:]
        for host_block, block_id in output.moves.swap_ins:
            self.memory[block_id] = self.host_memory[host_block][:]
        for source, target in output.moves.copies:
            self.memory[target] = self.memory[source][:]

    def _compute(self, output: SchedulerOutput) -> RunnerOutput:
        members = [item for item in output.scheduled if item.request_id not in self._broken]
        assert len({item.request_id for item in members}) == len(members), "scheduled twice"
        for item in members:
            self._write(item)
        sampled: dict[str, SampledToken] = {}
        pooled: dict[str, array[float]] = {}
        errors: dict[str, str] = {}
        for item in members:
            self._verify(item)
            if item.request_id in self.request_faults:
                self.request_faults.discard(item.request_id)
                self._broken.add(item.request_id)
                errors[item.request_id] = "fault in the request"
            elif item.is_sampling:
                sampled[item.request_id] = self._sample(item)
            elif self.requests[item.request_id].pooling_params is not None:
                self._pool(item, pooled)
        return RunnerOutput(
            sampled=sampled,
            pooled=pooled,
            errors=errors,
            execute_s=1e-3 * output.num_tokens,
            swap_out_s=1e-3 * len(output.moves.swap_outs),
            swap_in_s=1e-3 * len(output.moves.swap_ins),
        )

    def _write(self, item: ScheduledRequest) -> None:
        hashes = self._hashes[item.request_id]
        end = item.num_computed_tokens + item.num_new_tokens
        assert item.num_new_tokens > 0 and end <= len(hashes), f"{item} computes unknown tokens"
        for position in range(item.num_computed_tokens, end):
            block_id = item.block_table[position // self.block_size]
            slot = position % self.block_size
            if item.kind == "padding":
                assert self.memory[block_id][slot] == hashes[position], f"{item} changes its past"
            self.memory[block_id][slot] = hashes[position]

    def _verify(self, item: ScheduledRequest) -> None:
        end = item.num_computed_tokens + item.num_new_tokens
        num_blocks = -(-end // self.block_size)
        stored = [value for i in item.block_table[:num_blocks] for value in self.memory[i]]
        assert stored[:end] == self._hashes[item.request_id][:end], f"wrong contents for {item}"

    def _sample(self, item: ScheduledRequest) -> SampledToken:
        tokens, hashes = self.tokens[item.request_id], self._hashes[item.request_id]
        end = item.num_computed_tokens + item.num_new_tokens
        assert end == len(tokens), f"{item} samples before its last token"
        token_id = next_token(hashes[-1], self.requests[item.request_id].sampling_params.seed or 0)
        tokens.append(token_id)
        hashes.append(extend_hash(hashes[-1], token_id))
        return SampledToken(token_id=token_id)

    def _pool(self, item: ScheduledRequest, pooled: dict[str, array[float]]) -> None:
        """As the runner does: a mean reads every position, once; the last one alone is enough."""
        request = self.requests[item.request_id]
        assert request.pooling_params is not None
        start, end = item.num_computed_tokens, item.num_computed_tokens + item.num_new_tokens
        if item.kind == "padding":
            return
        read = self._read.setdefault(item.request_id, [])
        hashes = [float(value % 2**20) for value in self._hashes[item.request_id]]
        if request.pooling_params.pooling_type == "mean":
            assert start <= len(read), f"{item} leaves out what a mean needs"
            read.extend(hashes[len(read) : end])
        if end == len(request.prompt_token_ids):
            pooled[item.request_id] = array("d", [sum(read)] if read else hashes[-1:])


@dataclass
class Ending:
    """What a caller has seen of a request."""

    tokens: list[int] = field(default_factory=list)
    vector: list[float] | None = None
    reason: str | None = None
    error: str | None = None
    is_released: bool = False
    released_at_step: int | None = None


class Rig:
    """A real scheduler and loop over a fake executor, driven by hand, with its callers' view."""

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        block_size: int = 4,
        num_swap_blocks: int = 0,
        enable_prefix_caching: bool = True,
        overlap_depth: int = 0,
        cost: PreemptionCost | None = None,
        shares: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        """`shares`: weights of tenants, which then share fairly."""
        self.kv = KVCacheManager(
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            num_swap_blocks=num_swap_blocks,
        )
        self.scheduler = Scheduler(SchedulerConfig(**options), self.kv, cost)
        if shares is not None:
            self.scheduler.share_fairly(shares)
        self.executor = FakeExecutor.for_cache(self.kv, overlap_depth)
        self.clock = ManualClock()
        self.core = EngineCore(self.scheduler, self.executor, self.clock)
        self.requests: dict[str, Request] = {}
        self.endings: dict[str, Ending] = {}
        self.num_steps = 0

    @property
    def records(self) -> list[StepRecord]:
        return list(self.core.recorder.records)

    @property
    def running_ids(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    def add(
        self, request_id: str, prompt: Sequence[int] | int, *args: Any, **named: Any
    ) -> Request:
        """As `make_request()`, put in line now."""
        request = make_request(request_id, prompt, *args, arrival_time=self.clock.now(), **named)
        self.core.add_request(request)
        self.requests[request_id] = request
        self.endings[request_id] = Ending()
        return request

    def step(self, num_steps: int = 1) -> None:
        """Some steps, with the books checked and free memory spoilt after each."""
        for _ in range(num_steps):
            self.num_steps += 1
            self.take(self.core.step())
            self.scheduler.check_integrity()
            self.executor.poison_free(self.kv)

    def take(self, updates: Iterable[RequestUpdate | None]) -> None:
        for update in updates:
            assert update is not None
            ending = self.endings[update.request_id]
            assert not ending.is_released, "told about a request that has gone"
            ending.tokens.extend(update.new_token_ids)
            if update.pooled is not None:
                assert ending.vector is None, "a second vector"
                ending.vector = update.pooled.tolist()
            if update.finish_reason is not None:
                assert ending.reason is None, "ended twice"
                ending.reason, ending.error = update.finish_reason, update.error
            if update.is_released:
                ending.is_released, ending.released_at_step = True, self.num_steps

    def abort(self, request_id: str) -> None:
        self.take([self.core.abort(request_id)])

    def run(self, max_steps: int = 2000) -> None:
        """Until nobody is left; waiting windows pass at once."""
        for _ in range(max_steps):
            if not self.core.has_work:
                return
            self.step()
            if idle_s := self.core.idle_s():
                self.clock.advance(idle_s + 1e-9)
        raise AssertionError(f"not done after {max_steps} steps: {list(self.scheduler.requests)}")

    def check_solo(self, *request_ids: str) -> None:
        """These requests (or all) have ended as they would have alone."""
        for request_id in request_ids or self.requests:
            request, ending = self.requests[request_id], self.endings[request_id]
            solo = solo_tokens(
                request.prompt_token_ids,
                max_tokens=request.max_tokens,
                seed=request.sampling_params.seed or 0,
                stop_token_ids=request.stop_token_ids,
            )
            assert ending.tokens == solo, request_id
            assert ending.is_released, request_id
            if request.pooling_params is not None:
                kind = request.pooling_params.pooling_type or "last"
                assert ending.vector == solo_vector(request.prompt_token_ids, kind), request_id
                assert ending.reason == "stop"
            else:
                assert ending.vector is None
                assert ending.reason == ("stop" if solo[-1] in request.stop_token_ids else "length")
