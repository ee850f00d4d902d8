"""Long prompts among streams, and what batching gains: times of one run against each other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

BUDGET = 512


def greedy(length: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)


def longest_gap_s(engine: Engine, prompt: list[int], num_streams: int) -> float:
    """Streams decode, then a long prompt arrives: the longest pause between two tokens of one."""
    for index in range(num_streams):
        engine.add_request(f"{index} Tell me", greedy(200), request_id=f"stream {index}")
    for _ in range(4):
        engine.step()
    engine.add_request(prompt, greedy(1), request_id="long")
    last: dict[str, float] = {}
    longest_s, is_over = 0.0, False
    while not is_over:
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            if output.request_id == "long":
                is_over = output.finished
            else:
                longest_s = max(longest_s, now - last.get(output.request_id, now))
                last[output.request_id] = now
    assert len(last) == num_streams
    return longest_s


@pytest.mark.real_model
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "length"), [("chunked", 4000), ("separated", 1100)])
def test_d1_long_prompt_does_not_stall_decoding_streams(
    load_default_model: Callable[[str], LoadedModel], policy: str, length: int
) -> None:
    """No gap is longer than two full steps; between two prefill steps everybody decodes (D2)."""
    engine = make_engine(
        load_default_model("native"),
        enable_prefix_caching=False,
        prefill_policy=policy,
        max_num_batched_tokens=BUDGET,
    )
    prompt = [(7919 * i) % 40_000 + 100 for i in range(length)]
    gap_s = longest_gap_s(engine, prompt, num_streams=8)
    riding = [
        record
        for record in engine.core.recorder.records
        if any(member.request_id == "long" for member in record.members)
    ]
    tokens = [r.num_prefill_tokens + r.num_decode_tokens for r in riding]
    assert max(tokens) == BUDGET and tokens.count(BUDGET) >= length // BUDGET - 1
    assert gap_s <= 2 * max(record.duration_s for record in riding)
    if policy == "chunked":
        assert all(record.num_decode_tokens == 8 for record in riding)
    else:
        assert all(record.num_decode_tokens == 0 for record in riding)
        ids = [record.step_id for record in riding]
        assert all(after - before >= 2 for before, after in zip(ids, ids[1:], strict=False))


@pytest.mark.real_model
def test_d6_eight_mixed_requests_batched_are_twice_as_fast_as_serial(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    model = load_default_model("native")
    prompts = (
        "The capital of France is",
        "Write a story about a lift that never stops:",
        "1, 2, 3,",
        "def fibonacci(n):\n    ",
        "Once upon a time " * 6,
        "Name three colours:",
        "a " * 60,
        "Hello",
    )
    jobs = [
        Job(prompt=prompt, params=greedy(6 + 3 * (index % 4)))
        for index, prompt in enumerate(prompts)
    ]
    engine = make_engine(model, enable_prefix_caching=False)
    run_jobs(engine, jobs[:1])  # pages and caches warm

    start = time.perf_counter()
    serial = [run_jobs(engine, [job])[0].outputs[0].text for job in jobs]
    serial_s = time.perf_counter() - start
    start = time.perf_counter()
    batched = [output.outputs[0].text for output in run_jobs(engine, jobs)]
    batched_s = time.perf_counter() - start
    assert batched == serial
    assert serial_s / batched_s >= 2.0, f"serial {serial_s:.2f} s, batched {batched_s:.2f} s"
