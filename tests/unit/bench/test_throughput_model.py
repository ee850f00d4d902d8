"""The throughput model: recovers what synthetic steps were made of, and predicts by scheduling."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chairlift.bench.drive import ClosedLoop, OpenLoop
from chairlift.bench.throughput_model import StepTimeModel, fit_step_time, predict
from chairlift.bench.workload import uniform_workload
from chairlift.config import BatchingPolicyName, SchedulerConfig
from chairlift.errors import ChairliftError
from chairlift.events import StepRecord
from unit.bench.step_records import make_record

TRUTH = StepTimeModel(base_s=0.02, per_token_s=0.003, per_pair_s=1e-6, per_sample_s=0.0005)


def _records(truth: StepTimeModel, noise: float = 0.0) -> list[StepRecord]:
    rng = random.Random(0)
    records = []
    for step in range(60):
        tokens, pairs, sampled = rng.randint(1, 256), rng.randint(100, 50_000), rng.randint(1, 32)
        duration_s = truth.step_s(tokens, pairs, sampled) * (1 + rng.uniform(-noise, noise))
        sizes: dict[str, Any] = {
            "num_decode_tokens": tokens,
            "attention_pairs": pairs,
            "num_sampled_tokens": sampled,
            "execute_s": duration_s,
        }
        records.append(make_record(step, {"a": "decode"}, **sizes))
    return records


def test_recovers_the_coefficients() -> None:
    fitted = fit_step_time(_records(TRUTH))
    assert fitted.base_s == pytest.approx(TRUTH.base_s, rel=1e-6)
    assert fitted.per_token_s == pytest.approx(TRUTH.per_token_s, rel=1e-6)
    assert fitted.per_pair_s == pytest.approx(TRUTH.per_pair_s, rel=1e-6)
    assert fitted.per_sample_s == pytest.approx(TRUTH.per_sample_s, rel=1e-6)
    assert fitted.num_steps == 60 and fitted.mean_error < 1e-6


def test_a_few_disturbed_steps_do_not_count() -> None:
    records = _records(TRUTH)
    disturbed = [
        make_record(100, {"a": "decode"}, num_decode_tokens=50, execute_s=30.0) for _ in range(3)
    ]
    fitted = fit_step_time(records + disturbed)
    assert fitted.step_s(100, 10_000, 8) == pytest.approx(TRUTH.step_s(100, 10_000, 8), rel=0.01)


def test_coefficients_are_never_negative() -> None:
    shrinking = StepTimeModel(base_s=1.0, per_token_s=-0.002, per_pair_s=0.0, per_sample_s=0.001)
    fitted = fit_step_time(_records(shrinking, noise=0.05))
    assert fitted.per_token_s == 0.0
    assert min(fitted.base_s, fitted.per_pair_s, fitted.per_sample_s) >= 0.0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ChairliftError, match="more than 7 steps"):
        fit_step_time(_records(TRUTH)[:7])


def _predict(policy: BatchingPolicyName, model: StepTimeModel, **options: Any) -> Any:
    requests = uniform_workload(
        list(range(20)), num_requests=8, num_prompt_tokens=4, output_tokens=(5, 5), seed=0
    )
    scheduler = SchedulerConfig(
        batching_policy=policy, max_num_seqs=4, static_batch_size=4, max_num_batched_tokens=64
    )
    feed = ClosedLoop(requests, 1) if options.get("closed") else OpenLoop(requests)
    return predict(model, scheduler, num_blocks=64, block_size=16, feed=feed)


def test_prediction_is_steps_times_step_time() -> None:
    """Two full batches of five steps each, 0.1 s a step, whatever is in it."""
    constant = StepTimeModel(base_s=0.1, per_token_s=0.0, per_pair_s=0.0, per_sample_s=0.0)
    run = _predict("continuous", constant)
    assert len(run.records) == 10
    assert run.duration_s == pytest.approx(1.0)
    assert run.tokens_per_s == pytest.approx(40.0)
    assert run.mean_batch == 4.0


def test_prediction_of_one_client() -> None:
    constant = StepTimeModel(base_s=0.1, per_token_s=0.0, per_pair_s=0.0, per_sample_s=0.0)
    run = _predict("continuous", constant, closed=True)
    assert run.tokens_per_s == pytest.approx(10.0)
    assert run.mean_running == pytest.approx(1.0)


def test_prediction_uses_the_policy_and_every_term() -> None:
    """Four prompts of four tokens, then four decode steps of four rows; twice."""
    run = _predict("static", TRUTH)
    first = TRUTH.step_s(16, 4 * 10, 4)
    decodes = [TRUTH.step_s(4, 4 * (4 + step), 4) for step in range(1, 5)]
    assert run.policy == "static"
    assert run.duration_s == pytest.approx(2 * (first + sum(decodes)))
    assert {r.first_token_s == r.finished_s for r in run.results} == {True}
