"""Multiply-adds counted from sizes: against figures worked out by hand, and against real steps."""

from __future__ import annotations

from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.kernel_shapes import DEFAULT_CONFIG
from chairlift.bench.model_macs import MacCount, MacRates
from chairlift.bench.policy_engine import policy_config, policy_engine
from chairlift.bench.workload import uniform_workload
from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel
from unit.bench.step_records import make_record

DEFAULT = MacRates.of(DEFAULT_CONFIG)


def test_default_model_by_hand() -> None:
    layer = 576 * 576 + 2 * 192 * 576 + 576 * 576 + 3 * 1536 * 576
    assert DEFAULT.layers_per_token == 30 * layer == 106_168_320
    assert DEFAULT.head_per_row == 49_152 * 576 == 28_311_552
    assert DEFAULT.attention_per_pair == 34_560
    per_token = DEFAULT.layers_per_token + DEFAULT.head_per_row
    assert round(per_token / 1e6, 1) == 134.5


def test_a_request_of_512_and_128() -> None:
    """640 tokens through the layers would be 78.7 GMAC; the last one is never computed."""
    count = DEFAULT.of_request(512, 128)
    assert count.linear == 639 * 106_168_320 + 128 * 28_311_552
    assert count.attention == 639 * 640 // 2 * 34_560
    assert count.total == count.linear + count.attention
    assert round(count.total / 1e9, 1) == 78.5


def test_one_token_in_and_one_out() -> None:
    assert DEFAULT.of_request(1, 1) == MacCount(106_168_320 + 28_311_552, 34_560)


def test_padding_and_recomputation_are_work_of_steps() -> None:
    record = make_record(
        0, {"a": "padding", "b": "decode"}, num_sampled_tokens=1, attention_pairs=9
    )
    count = DEFAULT.of_steps([record, record])
    assert count == MacCount(2 * (2 * 106_168_320 + 28_311_552), 2 * 9 * 34_560)


def test_steps_of_a_real_run_add_up_to_its_requests(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    requests = uniform_workload(
        list(range(2, 200)), num_requests=5, num_prompt_tokens=11, output_tokens=(1, 9), seed=3
    )
    scheduler = policy_config(bench_model, "continuous", num_seats=3)
    run = drive(
        EngineTarget(policy_engine(bench_model, bench_asked, scheduler)), OpenLoop(requests)
    )
    rates, needed = MacRates.of(bench_model.config), MacCount(0, 0)
    for request in requests:
        needed += rates.of_request(len(request.prompt_token_ids), request.num_output_tokens)
    assert rates.of_steps(run.records) == needed
