"""Latency figures from answers made by hand, and from a tiny model."""

from __future__ import annotations

import dataclasses

from chairlift.bench.latency import Distribution, measure_latency, time_per_output_token
from chairlift.bench.length_range import LengthRange
from chairlift.bench.policy_run import RequestResult
from chairlift.bench.random_prompts import RandomPrompts
from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel


def _answer(num_tokens: int, first_s: float, finished_s: float) -> RequestResult:
    return RequestResult(
        request_id="x",
        num_prompt_tokens=3,
        token_ids=(1,) * num_tokens,
        arrival_s=0.0,
        first_token_s=first_s,
        finished_s=finished_s,
    )


def test_time_per_output_token_leaves_the_first_out() -> None:
    found = time_per_output_token(
        [_answer(5, 1.0, 3.0), _answer(1, 1.0, 1.0), _answer(2, 1.0, 4.0)]
    )
    assert found == Distribution((0.5, 3.0))
    assert time_per_output_token([_answer(1, 1.0, 1.0)]) is None


def test_percentiles_of_a_distribution() -> None:
    found = Distribution(tuple(float(value) for value in range(1, 101)))
    assert found.mean == 50.5
    assert found.to_json()["percentiles"] == {
        "10": 10.0, "25": 25.0, "50": 50.0, "75": 75.0, "90": 90.0, "99": 99.0,
    }  # fmt: skip


def test_one_value_per_batch_and_per_request(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    prompts = RandomPrompts(
        num_prompts=3, input_len=LengthRange(7, 7), output_len=LengthRange(4, 4)
    )
    asked = dataclasses.replace(bench_asked, enable_prefix_caching=False)
    lines: list[str] = []
    report = measure_latency(
        bench_model, asked, prompts, num_iters=2, num_iters_warmup=1, progress=lines.append
    )
    assert [line.split(":")[0] for line in lines] == ["warm-up", "iteration 1/2", "iteration 2/2"]
    assert len(report.batches.values) == 2 and len(report.ttft.values) == 6
    assert report.tpot is not None and len(report.tpot.values) == 6
    longest = max(report.batches.values)
    assert all(0 < value < longest for value in (*report.ttft.values, *report.tpot.values))
    assert report.ttft.mean + 3 * report.tpot.mean <= longest * 1.001
