"""The effective batch: its formula by hand, and its ratio where steps cost what they should."""

from __future__ import annotations

import pytest

from chairlift.bench.drive import OpenLoop
from chairlift.bench.effective_batch import effective_batch, prefill_share
from chairlift.bench.policy_ratio import policy_ratio
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.throughput_model import StepTimeModel, predict
from chairlift.bench.workload import uniform_workload
from chairlift.config import BatchingPolicyName, SchedulerConfig
from unit.bench.step_records import make_record

PER_TOKEN = StepTimeModel(base_s=0.0, per_token_s=1.0, per_pair_s=0.0, per_sample_s=0.0)
CONSTANT = StepTimeModel(base_s=0.1, per_token_s=0.0, per_pair_s=0.0, per_sample_s=0.0)
CPU = StepTimeModel(base_s=4e-3, per_token_s=4.5e-4, per_pair_s=6e-8, per_sample_s=1e-4)
"""About what steps of a small model cost on two cores."""


def _run(*records: object, num_seats: int = 4) -> PolicyRun:
    return PolicyRun(
        policy="continuous",
        num_seats=num_seats,
        start_s=0.0,
        duration_s=1.0,
        records=records,
        results=(),
    )


def test_decode_steps_count_riders_by_time() -> None:
    """Three riders for one second, one for three: padding and empty seats are nobody."""
    run = _run(
        make_record(0, {"a": "decode", "b": "decode", "c": "decode"}),
        make_record(1, {"a": "decode", "b": "padding", "c": "padding"}, execute_s=3.0),
    )
    assert effective_batch(run, PER_TOKEN) == pytest.approx((3 * 1 + 1 * 3) / 4)


def test_a_step_of_prompts_alone_is_full() -> None:
    run = _run(make_record(0, {"a": "prefill"}), make_record(1, {"a": "decode"}))
    assert prefill_share(run.records[0], PER_TOKEN) == 1.0
    assert effective_batch(run, PER_TOKEN) == pytest.approx((4 + 1) / 2)


def test_a_mixed_step_is_divided_by_what_its_parts_cost() -> None:
    """Of three tokens, one is a prompt's: a third of the time serves all four seats."""
    record = make_record(0, {"a": "prefill", "b": "decode", "c": "decode"}, num_sampled_tokens=3)
    assert prefill_share(record, PER_TOKEN) == pytest.approx(1 / 3)
    assert effective_batch(_run(record), PER_TOKEN) == pytest.approx(4 / 3 + 2 * 2 / 3)
    assert prefill_share(record, CONSTANT) == 0.0


def _predict(policy: BatchingPolicyName, step: StepTimeModel, seats: int, outputs: tuple[int, int]):
    requests = uniform_workload(
        list(range(50)),
        num_requests=100,
        num_prompt_tokens=128,
        output_tokens=outputs,
        seed=0,
    )
    scheduler = SchedulerConfig(
        batching_policy=policy,
        max_num_seqs=seats,
        static_batch_size=seats,
        max_num_batched_tokens=512,
    )
    return predict(step, scheduler, num_blocks=8192, block_size=16, feed=OpenLoop(requests))


@pytest.mark.parametrize(
    ("step", "outputs"), [(CONSTANT, (16, 256)), (CPU, (32, 512))], ids=["constant", "cpu"]
)
def test_throughputs_are_as_effective_batches(
    step: StepTimeModel, outputs: tuple[int, int]
) -> None:
    """The scheduler's own steps, at costs of a device where memory rules and of one where
    arithmetic does.
    """
    static, continuous = (
        _predict(policy, step, 32, outputs) for policy in ("static", "continuous")
    )
    ratio = policy_ratio(static, continuous, step)
    assert ratio.measured > 1.3
    assert abs(ratio.difference) < (0.01 if step is CONSTANT else 0.05)
    assert ratio.measured / ratio.by_batches == pytest.approx(1 + ratio.difference)


def test_equal_lengths_gain_nothing() -> None:
    static, continuous = (_predict(p, CPU, 25, (64, 64)) for p in ("static", "continuous"))
    ratio = policy_ratio(static, continuous, CPU)
    assert ratio.measured == pytest.approx(1.0, abs=0.03)
    assert ratio.by_batches == pytest.approx(1.0, abs=0.03)
