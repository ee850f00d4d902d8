"""Driving a real engine on a tiny model: open and closed loops, and the books afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from chairlift.bench.drive import ClosedLoop, EngineTarget, OpenLoop, drive
from chairlift.bench.policy_engine import POLICIES, policy_config, policy_engine
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.workload import BenchRequest, uniform_workload
from chairlift.config import BatchingPolicyName, EngineConfig
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError

REQUESTS = uniform_workload(
    list(range(2, 200)), num_requests=6, num_prompt_tokens=9, output_tokens=(2, 12), seed=5
)


def _target(model: LoadedModel, asked: EngineConfig, policy: BatchingPolicyName) -> EngineTarget:
    scheduler = policy_config(model, policy, num_seats=3, batch_wait_ms=0.0)
    return EngineTarget(policy_engine(model, asked, scheduler))


def _answers(run: PolicyRun) -> dict[str, tuple[int, ...]]:
    return {result.request_id: result.token_ids for result in run.results}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_exactly_its_tokens(
    bench_model: LoadedModel, bench_asked: EngineConfig, policy: BatchingPolicyName
) -> None:
    target = _target(bench_model, bench_asked, policy)
    seen: list[int] = []
    run = drive(target, OpenLoop(REQUESTS), on_step=lambda record: seen.append(record.step_id))
    assert {k: len(v) for k, v in _answers(run).items()} == {
        request.request_id: request.num_output_tokens for request in REQUESTS
    }
    assert run.policy == policy and run.num_seats == 3
    assert len(seen) == len(run.records) > 0
    has_padding = any(m.kind == "padding" for r in run.records for m in r.members)
    assert has_padding == (policy == "static")
    assert max(len(record.members) for record in run.records) == 3


def test_policies_say_the_same(bench_model: LoadedModel, bench_asked: EngineConfig) -> None:
    answers = [
        _answers(drive(_target(bench_model, bench_asked, policy), OpenLoop(REQUESTS)))
        for policy in POLICIES
    ]
    assert answers[0] == answers[1] == answers[2]


def test_static_answers_when_its_batch_ends(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    run = drive(_target(bench_model, bench_asked, "static"), OpenLoop(REQUESTS))
    finished = sorted(result.finished_s for result in run.results)
    assert len(set(finished)) == 2  # six requests, two batches of three
    assert all(result.first_token_s == result.finished_s for result in run.results)


def test_a_closed_loop_keeps_its_concurrency(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    target = _target(bench_model, bench_asked, "continuous")
    run = drive(target, ClosedLoop(REQUESTS, 2))
    assert len(run.results) == len(REQUESTS)
    assert max(len(record.members) for record in run.records) == 2


def test_arrivals_are_when_they_were_due(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    late = [dataclasses.replace(r, arrival_s=0.01 * i) for i, r in enumerate(REQUESTS)]
    run = drive(_target(bench_model, bench_asked, "continuous"), OpenLoop(late))
    arrivals = {r.request_id: r.arrival_s - run.start_s for r in run.results}
    assert arrivals == pytest.approx({r.request_id: r.arrival_s for r in late})
    assert all(result.first_token_s > result.arrival_s for result in run.results)


def test_the_runner_forgets_what_was_run(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    target = _target(bench_model, bench_asked, "continuous")
    drive(target, OpenLoop(REQUESTS))
    assert not target.core.has_work
    assert not bench_model.runner._riding


def test_a_request_that_cannot_fit_is_refused(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    too_long = BenchRequest(request_id="x", prompt_token_ids=(2,) * 999, num_output_tokens=1)
    with pytest.raises(RequestError):
        drive(_target(bench_model, bench_asked, "continuous"), OpenLoop([too_long]))
