from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def test_a_run_is_told_in_one_line(load_tiny: Callable[..., LoadedModel]) -> None:
    engine = make_engine(load_tiny(), enable_prefix_caching=False)
    run_jobs(engine, [Job(prompt=[index, 5, 6], params=PARAMS) for index in range(2, 6)])
    line = engine.summary.take()
    assert line.startswith("12 tokens in, 80 out in 20 steps and ")
    assert "mean batch 4.0, 0 preemptions" in line
    assert line.endswith("what kept more requests out: arrivals (nobody was waiting)")
    assert engine.summary.take().startswith("0 tokens in, 0 out in 0 steps")


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"max_num_seqs": 2}, "max_num_seqs"), ({"num_blocks": 5}, "KV cache blocks")],
)
def test_d7_the_log_names_the_limit_that_binds(
    load_tiny: Callable[..., LoadedModel], options: dict[str, int], limit: str
) -> None:
    engine = make_engine(load_tiny(), **options)
    run_jobs(engine, [Job(prompt=[index, 5, 6], params=PARAMS) for index in range(2, 12)])
    assert engine.summary.take().endswith(f"what kept more requests out: {limit}")


def test_c3_the_log_names_mode_victim_and_cost_of_a_preemption(
    load_tiny: Callable[..., LoadedModel], caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(
        load_tiny(), num_blocks=5, enable_prefix_caching=False, preemption_mode="swap"
    )
    longer = dataclasses.replace(PARAMS, max_tokens=44)
    with caplog.at_level(logging.INFO, logger="chairlift"):
        run_jobs(engine, [Job(prompt=[index] * 20, params=longer) for index in range(2, 6)])
    lines = [line for line in caplog.messages if line.startswith("preempted ")]
    assert lines and all("estimated swap" in line and "recompute" in line for line in lines)
    assert any(" by swap: " in line for line in lines)
