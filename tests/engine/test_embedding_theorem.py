"""A vector does not depend on company: the same bits alone, batched, chunked or preempted.

Prompts whose vectors are wanted ride with others that generate, and change none of their tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from chairlift.core.scheduler import Scheduler
from chairlift.engine.loaded_model import LoadedModel
from chairlift.outputs import RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, preempting, run_jobs

BATCHING = ("continuous", "dynamic", "static")
CHUNKS = (1, 7, 512)
PREEMPTION = ("none", "recompute", "swap")

LAST, MEAN = PoolingParams(pooling_type="last"), PoolingParams(pooling_type="mean")
SHARED = [(7 * i + 3) % 250 + 2 for i in range(40)]


def jobs() -> list[Job]:
    """Vectors of prompts that share prefixes, one twice, between requests for tokens."""

    def tokens(length: int, **options: object) -> SamplingParams:
        return SamplingParams(max_tokens=length, ignore_eos=True, **options)  # type: ignore[arg-type]

    return [
        Job(prompt=SHARED[:37], params=tokens(6, temperature=0.0)),
        Job(prompt=SHARED[:37], pooling=LAST),
        Job(prompt=SHARED[:37], pooling=MEAN),
        Job(prompt=[5], pooling=MEAN, arrival_step=1),
        Job(prompt=[*SHARED, 9, 8, 7], params=tokens(9, temperature=1.0, seed=5), arrival_step=1),
        Job(prompt=list(range(100, 161)), pooling=MEAN, arrival_step=1),
        Job(prompt=SHARED[:32], pooling=LAST, arrival_step=2),
        Job(prompt=SHARED, params=tokens(5, temperature=0.7, seed=1, n=2), arrival_step=2),
        Job(
            prompt=[*SHARED[:20], *range(30, 45)],
            pooling=PoolingParams(pooling_type="mean", normalize=False),
            arrival_step=3,
        ),
        Job(prompt=SHARED[:37], pooling=MEAN, arrival_step=5),
        Job(
            prompt=[*SHARED[:20], *range(30, 45)],
            params=tokens(3, temperature=0.0, prompt_logprobs=2),
            arrival_step=6,
        ),
    ]


def results(outputs: Sequence[RequestOutput]) -> list[object]:
    """What each request was for: its vector's bits, or tokens and log probabilities."""
    return [
        (
            [list(completion.token_ids) for completion in output.outputs],
            repr(output.prompt_logprobs),
            None if output.embedding is None else output.embedding.tobytes(),
        )
        for output in outputs
    ]


def alone(model: LoadedModel) -> list[object]:
    """Each job in an engine of its own."""
    found = []
    for job in jobs():
        job = Job(prompt=job.prompt, params=job.params, pooling=job.pooling)
        found += results(run_jobs(make_engine(model, enable_prefix_caching=False), [job]))
    return found


@pytest.fixture(scope="module")
def solo() -> Callable[[LoadedModel], list[object]]:
    known: dict[int, list[object]] = {}

    def get(model: LoadedModel) -> list[object]:
        if id(model) not in known:
            known[id(model)] = alone(model)
        return known[id(model)]

    return get


def check(
    model: LoadedModel, expected: list[object], seed: int, *, preemption: str, **options: object
) -> int:
    """Run all together and compare; how often something was swapped out."""
    with preempting(seed) as rude:
        engine = make_engine(
            model,
            scheduler_class=Scheduler if preemption == "none" else rude,
            preemption_mode="recompute" if preemption == "none" else preemption,
            static_batch_size=4,
            **options,  # type: ignore[arg-type]
        )
        outputs = run_jobs(engine, jobs())
    for output, job in zip(outputs, jobs(), strict=True):
        reason = "length" if job.pooling is None else "stop"
        assert {item.finish_reason for item in output.outputs} == {reason}
        assert (output.embedding is None) == (job.pooling is None)
    counts = engine.scheduler.num_preemptions
    assert (sum(counts.values()) > 0) == (preemption != "none")
    assert results(outputs) == expected
    return counts["swap"]


@pytest.mark.parametrize("kernels", ["native", "int8", "reference"])
@pytest.mark.parametrize("batching", BATCHING)
def test_vectors_do_not_depend_on_company(
    load_tiny: Callable[..., LoadedModel],
    solo: Callable[[LoadedModel], list[object]],
    kernels: str,
    batching: str,
) -> None:
    model = load_tiny("llama3", kernels)
    num_swaps = 0
    for seed, (chunk, preemption) in enumerate(itertools.product(CHUNKS, PREEMPTION)):
        num_swaps += check(
            model,
            solo(model),
            seed,
            preemption=preemption,
            batching_policy=batching,
            prefill_policy="separated" if seed % 2 else "chunked",
            long_prefill_token_threshold=chunk,
            enable_prefix_caching=seed % 3 != 2,
            max_num_seqs=4 if seed % 4 == 3 else 64,
        )
    assert num_swaps > 0


@pytest.mark.parametrize("variant", ["mistral", "qwen3"])
def test_vectors_do_not_depend_on_company_other_families(
    load_tiny: Callable[..., LoadedModel],
    solo: Callable[[LoadedModel], list[object]],
    variant: str,
) -> None:
    model = load_tiny(variant, "native")
    for seed, (chunk, preemption) in enumerate(itertools.product((7, 512), PREEMPTION)):
        check(
            model,
            solo(model),
            seed,
            preemption=preemption,
            long_prefill_token_threshold=chunk,
        )


@pytest.mark.real_model
@pytest.mark.timeout(300)
def test_vectors_do_not_depend_on_company_real_model(
    load_default_model: Callable[..., LoadedModel],
    solo: Callable[[LoadedModel], list[object]],
) -> None:
    model = load_default_model("int8")
    check(model, solo(model), 1, preemption="recompute", long_prefill_token_threshold=16)
    check(model, solo(model), 2, preemption="swap", long_prefill_token_threshold=7)


def test_a_mean_is_not_read_from_the_prefix_cache_and_a_last_state_is(
    load_tiny: Callable[..., LoadedModel],
) -> None:
    engine = make_engine(load_tiny())
    first = run_jobs(engine, [Job(prompt=SHARED, pooling=LAST)])
    again, mean = run_jobs(engine, [Job(prompt=SHARED, pooling=p) for p in (LAST, MEAN)])
    assert results(first) == results([again])
    assert again.num_cached_tokens == len(SHARED) - 1 and mean.num_cached_tokens == 0
