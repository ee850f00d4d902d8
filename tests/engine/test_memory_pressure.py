"""A pool smaller than its requests: all finish, with the text they have alone, and it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError
from chairlift.outputs import RequestOutput
from chairlift.sampling_params import SamplingParams
from engines import Job, load, make_engine, run_jobs, tokens_of

Load = Callable[..., LoadedModel]


def greedy(length: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=1)


REAL_JOBS = [
    Job(prompt=prompt, params=greedy(16))
    for prompt in (
        "The capital of France is",
        "Write a story about a lift that never stops, in the mountains:",
        "1, 2, 3, 4, 5,",
        "def fibonacci(n):\n    ",
    )
]
TINY_JOBS = [
    Job(prompt=[(11 * i + k) % 200 + 2 for i in range(12 + 9 * k)], params=greedy(40))
    for k in range(4)
]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


@pytest.fixture(scope="module")
def solo_texts(load_default_model: Callable[[str], LoadedModel]) -> list[str]:
    model = load_default_model("native")
    return [texts(run_jobs(make_engine(model), [job]))[0] for job in REAL_JOBS]


@pytest.mark.real_model
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_c1_four_requests_larger_than_the_pool_all_finish_with_their_solo_text(
    load_default_model: Callable[[str], LoadedModel], solo_texts: list[str], mode: str
) -> None:
    engine = make_engine(
        load_default_model("native"),
        num_blocks=5,
        num_swap_blocks=24,
        enable_prefix_caching=False,
        preemption_mode=mode,
    )
    outputs = run_jobs(engine, REAL_JOBS)
    assert texts(outputs) == solo_texts
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    counts = engine.scheduler.num_preemptions
    assert counts[mode] if mode != "auto" else sum(counts.values())
    assert mode == "auto" or not counts["swap" if mode == "recompute" else "recompute"]


@pytest.mark.parametrize("place", ["memory", "file"])
def test_c2_swapped_out_request_ends_byte_identical(
    tiny_folder: Callable[[str], Path], tmp_path: Path, place: str
) -> None:
    """Tokens, log probabilities and the keys and values themselves."""
    model = load(
        tiny_folder("llama3"),
        kv_cache_memory="160KiB",
        swap_space=0.001,
        swap_path=str(tmp_path) if place == "file" else None,
        preemption_mode="swap",
    )
    if place == "file":
        assert any(str(tmp_path) in line for line in model.resolved.reasons)
    alone = [
        run_jobs(make_engine(model, enable_prefix_caching=False), [job])[0] for job in TINY_JOBS
    ]
    engine = make_engine(model, enable_prefix_caching=False)
    together = run_jobs(engine, TINY_JOBS)
    assert engine.scheduler.num_preemptions["swap"] > 0
    assert engine.scheduler.num_preemptions["recompute"] == 0
    assert tokens_of(together) == tokens_of(alone)
    assert [o.outputs[0].logprobs for o in together] == [o.outputs[0].logprobs for o in alone]
    assert sum(record.swap_bytes for record in engine.core.recorder.records) > 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_c3_record_names_mode_victim_and_cost_of_every_preemption(
    load_tiny: Load, mode: str
) -> None:
    engine = make_engine(
        load_tiny(),
        num_blocks=10,
        num_swap_blocks=40,
        enable_prefix_caching=False,
        preemption_mode=mode,
    )
    outputs = run_jobs(engine, TINY_JOBS)
    ids = {output.request_id for output in outputs}
    records = list(engine.core.recorder.records)
    preemptions = [item for record in records for item in record.preemptions]
    assert len(preemptions) == sum(engine.scheduler.num_preemptions.values()) > 0
    for item in preemptions:
        assert item.request_id in ids
        assert item.num_blocks > 0 or item.num_blocks_kept > 0
        assert "for " in item.reason
        if item.num_tokens_dropped:
            assert item.mode == mode
            assert item.swap_cost_s > 0 and item.recompute_cost_s > 0
            assert f"preemption_mode is {mode}" in item.reason
    assert {item.mode for item in preemptions if item.num_tokens_dropped} == {mode}
    hit = {item.request_id for item in preemptions}
    assert {o.request_id for o in outputs if o.metrics.num_preemptions} <= hit
    line = next(record for record in records if record.preemptions).to_json()
    assert '"recompute_cost_s"' in line and '"mode":"' + mode in line


def test_c4_request_longer_than_the_pool_is_told_what_fits_and_the_engine_lives(
    load_tiny: Load,
) -> None:
    engine = make_engine(load_tiny(), num_blocks=4)
    control = Job(prompt="abc", params=greedy(5))
    before = tokens_of(run_jobs(engine, [control]))
    largest = 4 * 16 + 1  # the last token's keys and values are never stored
    with pytest.raises(RequestError, match=rf"\b{largest} tokens") as caught:
        engine.add_request([5] * 30, greedy(largest - 30 + 1))
    assert caught.value.field == "max_tokens"
    with pytest.raises(RequestError, match=rf"\b{largest} tokens") as caught:
        engine.add_request([5] * largest, greedy(1))
    assert caught.value.field == "prompt"
    (output,) = run_jobs(engine, [Job(prompt=[5] * 30, params=greedy(largest - 30))])
    assert len(output.outputs[0].token_ids) == largest - 30
    assert tokens_of(run_jobs(engine, [control])) == before


def test_n_completions_larger_than_the_pool_all_finish(load_tiny: Load) -> None:
    params = SamplingParams(n=4, seed=3, max_tokens=40, ignore_eos=True)
    job = Job(prompt="a" * 30, params=params)
    roomy = tokens_of(run_jobs(make_engine(load_tiny()), [job]))
    engine = make_engine(load_tiny(), num_blocks=7, num_swap_blocks=20)
    assert tokens_of(run_jobs(engine, [job])) == roomy
    assert sum(engine.scheduler.num_preemptions.values()) > 0
