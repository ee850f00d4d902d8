"""Aborts at every point of a request's life, and faults that end one request and no other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from chairlift.core.scheduler_output import SchedulerOutput
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError
from chairlift.outputs import RequestOutput
from chairlift.runner import sampler
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from engines import Job, make_engine, preempting, run_jobs, tokens_of

Load = Callable[..., LoadedModel]
PROMPT = [(7 * i) % 200 + 2 for i in range(50)]


def greedy(length: int = 30, **options: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": length, "ignore_eos": True, **options}
    )


def finish(engine: Engine) -> dict[str, RequestOutput]:
    """Step until nothing is left; the finished outputs by id."""
    finished = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
    engine.scheduler.check_integrity()
    return finished


# -- aborts ----------------------------------------------------------------------------------
def waiting(engine: Engine) -> None:
    """Its seat is taken by "other"."""
    engine.add_request(PROMPT, greedy(), request_id="other")
    engine.add_request(PROMPT[:20], greedy(), request_id="r")
    engine.step()
    assert len(engine.scheduler.waiting) == 1


def in_a_chunk(engine: Engine) -> None:
    engine.add_request(PROMPT, greedy(), request_id="r")
    engine.step()
    engine.step()
    assert 0 < engine.scheduler.requests["r"].num_computed_tokens < len(PROMPT)


def decoding(engine: Engine) -> None:
    engine.add_request(PROMPT, greedy(), request_id="r")
    while not engine.scheduler.requests["r"].num_output_tokens > 2:
        engine.step()


def swapped_out(engine: Engine) -> None:
    decoding(engine)
    request = engine.scheduler.requests["r"]
    output = SchedulerOutput(step_id=0)
    engine.scheduler.preemptor.take_back(request, len(request.block_table), output, "for the test")
    assert len(engine.scheduler.swapped) == 1 and request.host_blocks


def parked(engine: Engine) -> None:
    """Two completions wait for the first one's prompt, which is in a chunk."""
    engine.add_request(PROMPT, greedy(temperature=1.0, n=3), request_id="r")
    engine.step()
    assert len(engine.scheduler.queues.parked)


def forked(engine: Engine) -> None:
    engine.add_request(PROMPT, greedy(temperature=1.0, n=3), request_id="r")
    for _ in range(30):
        engine.step()
    assert all(engine.scheduler.requests[f"r#{i}"].num_output_tokens for i in range(3))


@pytest.mark.parametrize(
    "situation",
    [waiting, in_a_chunk, decoding, swapped_out, parked, forked],
    ids=lambda situation: situation.__name__,
)
def test_abort_frees_everything_at_once_at_any_point(
    load_tiny: Load, situation: Callable[[Engine], None]
) -> None:
    engine = make_engine(
        load_tiny(),
        num_blocks=40,
        num_swap_blocks=20,
        long_prefill_token_threshold=8,
        preemption_mode="swap",
        max_num_seqs=1 if situation is waiting else 8,
    )
    situation(engine)
    (output,) = engine.abort("r")
    assert output.finished and {c.finish_reason for c in output.outputs} == {"abort"}
    assert not any(name.startswith("r") for name in engine.scheduler.requests)
    engine.abort("other")
    engine.step()
    assert engine.scheduler.kv.num_free_blocks == 40
    engine.scheduler.check_integrity()
    assert not engine.has_unfinished_requests
    alone = make_engine(load_tiny(), enable_prefix_caching=False)
    job = Job(prompt=PROMPT, params=greedy())
    assert tokens_of(run_jobs(engine, [job])) == tokens_of(run_jobs(alone, [job]))


def test_f4_abort_and_retry_with_the_same_prefix_100_times(load_tiny: Load) -> None:
    engine = make_engine(load_tiny(), num_blocks=12)
    expected = tokens_of(run_jobs(engine, [Job(prompt=PROMPT, params=greedy(5))]))
    for index in range(100):
        engine.add_request(PROMPT, greedy(), request_id="same")
        for _ in range(index % 4):
            engine.step()
        engine.abort("same")
    assert tokens_of(run_jobs(engine, [Job(prompt=PROMPT, params=greedy(5))])) == expected
    assert engine.scheduler.kv.num_free_blocks == 12


@pytest.mark.parametrize("seed", range(6))
def test_f5_random_aborts_with_prefix_cache_swap_and_n(load_tiny: Load, seed: int) -> None:
    rng = random.Random(seed)
    jobs = [
        Job(
            prompt=[*PROMPT[: rng.randint(1, 50)], rng.randint(2, 99)],
            params=greedy(rng.randint(1, 20), temperature=1.0, seed=i, n=rng.choice([1, 1, 3])),
        )
        for i in range(8)
    ]
    expected = tokens_of(run_jobs(make_engine(load_tiny()), jobs))
    with preempting(seed) as rude:
        engine = make_engine(
            load_tiny(),
            num_blocks=24,
            num_swap_blocks=12,
            scheduler_class=rude,
            long_prefill_token_threshold=rng.choice([0, 8]),
            batching_policy=rng.choice(["continuous", "dynamic", "static"]),
            batch_wait_ms=0.0,
        )
        finished: dict[str, RequestOutput] = {}
        for index, job in enumerate(jobs):
            engine.add_request(job.prompt, job.params, request_id=str(index))
            for _ in range(rng.randint(0, 4)):
                finished |= {o.request_id: o for o in engine.step() if o.finished}
            if rng.random() < 0.5:
                for output in engine.abort(str(rng.randint(0, index))):
                    finished[output.request_id] = output
        finished |= finish(engine)
    assert len(finished) == 8, "a request got no answer"
    for index in range(8):
        for completion, tokens in zip(finished[str(index)].outputs, expected[index], strict=True):
            if completion.finish_reason == "abort":
                assert completion.token_ids == tokens[: len(completion.token_ids)]
            else:
                assert completion.token_ids == tokens
    assert engine.scheduler.kv.num_free_blocks == 24


# -- faults ----------------------------------------------------------------------------------
@pytest.fixture
def expected(load_tiny: Load) -> dict[str, list[int]]:
    """What "one" and "two" say when nothing goes wrong."""
    return {
        name: tokens_of(run_jobs(make_engine(load_tiny()), [job]))[0][0]
        for name, job in {
            "one": Job(prompt="first", params=greedy(10)),
            "two": Job(prompt=PROMPT, params=greedy(10)),
        }.items()
    }


@pytest.fixture
def trio(load_tiny: Load) -> Engine:
    """ "one" and "two" with a victim "bad" between them."""
    engine = make_engine(load_tiny(), num_blocks=40)
    engine.add_request("first", greedy(10), request_id="one")
    engine.add_request("bad one", greedy(10, min_p=0.125), request_id="bad")
    engine.add_request(PROMPT, greedy(10), request_id="two")
    return engine


def check_trio(engine: Engine, expected: dict[str, list[int]]) -> None:
    """Only "bad" has ended with an error, the others are whole, and so is the engine."""
    finished = finish(engine)
    assert {name: finished[name].outputs[0].token_ids for name in ("one", "two")} == expected
    assert engine.scheduler.kv.num_free_blocks == 40
    (bad,) = finished["bad"].outputs
    assert bad.finish_reason == "error" and bad.error and "\n" not in bad.error
    assert "out of snow" in bad.error
    (again,) = run_jobs(engine, [Job(prompt="first", params=greedy(10))])
    assert again.outputs[0].token_ids == expected["one"]


def is_bad(state: RequestSamplingState) -> bool:
    return state.params.min_p == 0.125


@pytest.mark.parametrize("fault", [RuntimeError, RequestError, FloatingPointError])
@pytest.mark.parametrize("after", [0, 4])
def test_sampler_fault_ends_its_request_only(
    trio: Engine,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    fault: type[Exception],
    after: int,
) -> None:
    originals = sampler.row_query, sampler._sample_row

    def ask(state: RequestSamplingState) -> Any:
        if is_bad(state) and state.num_output_tokens == after:
            raise fault("out of snow")
        return originals[0](state)

    def sample(logits: Any, peak: float, best: int, state: RequestSamplingState) -> Any:
        ask(state)
        return originals[1](logits, peak, best, state)

    monkeypatch.setattr(sampler, "row_query", ask)
    monkeypatch.setattr(sampler, "_sample_row", sample)
    check_trio(trio, expected)


def test_text_fault_ends_its_request_only(
    trio: Engine, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = IncrementalDetokenizer.push
    (bad,) = trio._output_processor._answers["bad"].completions

    def push(self: IncrementalDetokenizer, token_ids: list[int]) -> str:
        if self is bad.detokenizer and len(bad.output.token_ids) == 3:
            raise LookupError("out of snow")
        return original(self, token_ids)

    monkeypatch.setattr(IncrementalDetokenizer, "push", push)
    check_trio(trio, expected)


@pytest.mark.parametrize("fault", [RuntimeError, RequestError])
def test_unusable_options_found_by_the_runner_end_their_request_only(
    trio: Engine,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    fault: type[Exception],
) -> None:
    original = trio.model.runner._ride

    def ride(new: Any) -> Any:
        if new.request_id == "bad":
            raise fault("out of snow")
        return original(new)

    monkeypatch.setattr(trio.model.runner, "_ride", ride)
    check_trio(trio, expected)


@pytest.mark.parametrize("fault", [RuntimeError, FloatingPointError])
def test_prompt_logprobs_fault_ends_its_request_only(
    load_tiny: Load,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    fault: type[Exception],
) -> None:
    def score(*args: Any) -> Any:
        raise fault("out of snow")

    engine = make_engine(load_tiny(), num_blocks=40)
    monkeypatch.setattr(engine.model.runner._sampler, "prompt_logprobs", score)
    engine.add_request("first", greedy(10), request_id="one")
    engine.add_request("bad", greedy(10, prompt_logprobs=1), request_id="bad")
    engine.add_request(PROMPT, greedy(10), request_id="two")
    finished = finish(engine)
    assert {name: finished[name].outputs[0].token_ids for name in expected} == expected
    assert finished["bad"].outputs[0].finish_reason == "error"
    assert "out of snow" in (finished["bad"].outputs[0].error or "")
    assert engine.scheduler.kv.num_free_blocks == 40


@pytest.mark.parametrize("num_good_steps", [0, 3])
def test_kernel_fault_ends_the_riders_of_its_step_and_the_engine_goes_on(
    load_tiny: Load,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    num_good_steps: int,
) -> None:
    engine = make_engine(load_tiny(), num_blocks=40, max_num_seqs=2)
    engine.add_request("first", greedy(10), request_id="a")
    engine.add_request(PROMPT, greedy(10, n=2, temperature=1.0, seed=0), request_id="b")
    engine.add_request("first", greedy(10), request_id="one")  # waits for a seat
    engine.add_request(PROMPT, greedy(10), request_id="two")
    for _ in range(num_good_steps):
        engine.step()
    original = engine.model.runner.submit

    def submit(output: SchedulerOutput) -> Any:
        monkeypatch.setattr(engine.model.runner, "submit", original)
        raise OSError("the lift stands still")

    monkeypatch.setattr(engine.model.runner, "submit", submit)
    finished = finish(engine)
    riders = {
        member.request_id
        for record in engine.core.recorder.records
        if record.error
        for member in record.members
    }
    assert "a" in riders and not riders & {"one", "two"}
    for name in ("a", "b"):
        for index, completion in enumerate(finished[name].outputs):
            child = name if name == "a" else f"b#{index}"
            assert (completion.finish_reason == "error") == (child in riders)
            if child in riders:
                assert "the lift stands still" in (completion.error or "")
    assert {name: finished[name].outputs[0].token_ids for name in expected} == expected
    assert engine.scheduler.kv.num_free_blocks == 40


# -- bad input -------------------------------------------------------------------------------
BAD_PARAMS: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 65),
    ("n", 2),  # with temperature 0
    ("n", True),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", -1.0),
    ("temperature", "hot"),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("repetition_penalty", 0.0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("seed", 2**64),
    ("seed", "x"),
    ("stop", [""]),
    ("stop", [5]),
    ("stop", 5),
    ("stop", ["x"] * 17),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [256]),
    ("stop_token_ids", "ab"),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("min_tokens", -1),
    ("min_tokens", 31),
    ("logprobs", 21),
    ("logprobs", -1),
    ("prompt_logprobs", True),
    ("logit_bias", {256: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {5: 101.0}),
    ("logit_bias", {5: float("nan")}),
    ("logit_bias", [5]),
    ("bad_words", [""]),
    ("bad_words", ["\ud800"]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [256]),
    ("ignore_eos", 1),
    ("detokenize", None),
]
BAD_PROMPTS: list[tuple[str, Any]] = [
    ("prompt", ""),
    ("prompt", []),
    ("prompt", "x" * 300),
    ("prompt", [5] * 256),
    ("prompt", "a\udfff"),
    ("prompt", None),
    ("prompt_token_ids", [5, 256]),
    ("prompt_token_ids", [5, -1]),
    ("prompt_token_ids", [True, False]),
    ("prompt_token_ids", [5, "x"]),
    ("prompt_token_ids", [[5], [6]]),
]


def test_bad_input_is_named_and_leaves_no_trace(load_tiny: Load) -> None:
    engine = make_engine(load_tiny(), num_blocks=20)
    control = Job(prompt="control", params=greedy(6))
    before = tokens_of(run_jobs(engine, [control]))
    for field, value in BAD_PARAMS:
        with pytest.raises(RequestError) as caught:
            engine.add_request("abc", greedy(**{field: value}))
        assert caught.value.field == field, (field, value)
        assert field in str(caught.value) and "\n" not in str(caught.value)
    for field, prompt in BAD_PROMPTS:
        with pytest.raises(RequestError) as caught:
            engine.add_request(prompt, greedy())
        assert caught.value.field == field, prompt
    assert not engine.has_unfinished_requests
    assert tokens_of(run_jobs(engine, [control])) == before
    assert engine.scheduler.kv.num_free_blocks == 20


def test_options_that_leave_no_token_end_their_request_only(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    engine.add_request("abc", greedy(8), request_id="good")
    dead_end = greedy(8, allowed_token_ids=[1], min_tokens=3, ignore_eos=False)
    engine.add_request("abc", dead_end, request_id="dead end")
    finished = finish(engine)
    assert len(finished["good"].outputs[0].token_ids) == 8
    (completion,) = finished["dead end"].outputs
    assert completion.finish_reason == "error" and "allowed_token_ids" in (completion.error or "")


def test_request_ids_may_be_used_again(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    for _ in range(3):
        engine.add_request("abc", greedy(3), request_id="r")
        with pytest.raises(RequestError) as caught:
            engine.add_request("abc", greedy(3), request_id="r")
        assert caught.value.field == "request_id"
        assert finish(engine).keys() == {"r"}
