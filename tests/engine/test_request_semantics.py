"""Sampling, log probabilities, completions and caching, as users of vLLM know them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.llm import LLM
from chairlift.engine.loaded_model import LoadedModel
from chairlift.outputs import RequestOutput
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs, tokens_of

Load = Callable[..., LoadedModel]


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **options})


def one(engine: Engine, prompt: Any, **options: Any) -> RequestOutput:
    return run_jobs(engine, [Job(prompt=prompt, params=params(**options))])[0]


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


# -- determinism -----------------------------------------------------------------------------
@pytest.mark.real_model
def test_g5_temperature_zero_is_the_same_alone_at_once_and_staggered(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    model = load_default_model("native")
    prompts = [f"{index} and {index + 1} make" for index in range(8)]

    def digest(outputs: list[RequestOutput]) -> str:
        return hashlib.sha256(repr([ids(output) for output in outputs]).encode()).hexdigest()

    def run(stagger: int, indices: range) -> list[RequestOutput]:
        jobs = [
            Job(prompt=prompts[i], params=params(max_tokens=8), arrival_step=stagger * i)
            for i in indices
        ]
        return run_jobs(make_engine(model), jobs)

    alone = [run(0, range(i, i + 1))[0] for i in range(8)]
    assert digest(alone) == digest(run(0, range(8))) == digest(run(1, range(8)))


def test_seeded_request_is_equal_in_any_company_and_engine(load_tiny: Load) -> None:
    seeded = Job(prompt="abc", params=params(temperature=1.5, seed=-7))
    others = [Job(prompt=f"x{i}", params=params(temperature=1.0)) for i in range(5)]
    expected = ids(run_jobs(make_engine(load_tiny()), [seeded])[0])
    for _ in range(3):
        assert ids(run_jobs(make_engine(load_tiny()), [*others, seeded])[-1]) == expected
    other_seed = one(make_engine(load_tiny()), "abc", temperature=1.5, seed=8)
    assert ids(other_seed) != expected


def test_unseeded_requests_vary_and_repeat_with_the_engines_seed(load_tiny: Load) -> None:
    def run(seed: int | None) -> list[list[list[int]]]:
        engine = Engine(load_tiny(), EngineConfig(seed=seed))
        return tokens_of([one(engine, "abc", temperature=1.5) for _ in range(2)])

    assert run(5) == run(5) != run(6)
    assert run(5)[0] != run(5)[1], "two requests of one engine share their noise"
    assert run(None) != run(None)


# -- sampling options have an effect ---------------------------------------------------------
def test_bias_bans_and_allows(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    plain = ids(one(engine, "abc"))
    assert set(ids(one(engine, "abc", logit_bias={77: 100.0}))) == {77}
    banned = ids(one(engine, "abc", logit_bias={plain[0]: -100.0}))
    assert plain[0] not in banned
    assert set(ids(one(engine, "abc", allowed_token_ids=[5, 6]))) <= {5, 6}


def test_bad_words_never_appear(load_tiny: Load) -> None:
    engine, tokenizer = make_engine(load_tiny()), load_tiny().tokenizer
    wanted = {letter: tokenizer.encode(letter)[0] for letter in "xyz"}
    options: dict[str, Any] = {
        "temperature": 5.0,
        "max_tokens": 60,
        "seed": 1,
        "allowed_token_ids": list(wanted.values()),
    }
    free = one(engine, "abc", **options).outputs[0].text
    assert "xy" in free and "z" in free
    text = one(engine, "abc", **options, bad_words=["xy", "z"]).outputs[0].text
    assert "xy" not in text and "z" not in text and set(text) == {"x", "y"}


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_make_the_text_less_repetitive(load_tiny: Load, penalty: str) -> None:
    engine = make_engine(load_tiny())
    bias = {50: 41.5, 60: 40.0, 70: 40.0}  # only these, and one of them most of the time
    plain = ids(one(engine, "abc", logit_bias=bias))
    penalised = ids(one(engine, "abc", logit_bias=bias, **{penalty: 1.9}))
    assert set(plain) | set(penalised) <= set(bias)
    assert penalised.count(50) < plain.count(50)


@pytest.mark.parametrize("option", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_narrow_sampling_equals_greedy(load_tiny: Load, option: dict[str, float]) -> None:
    engine = make_engine(load_tiny())
    greedy = ids(one(engine, "abc"))
    assert ids(one(engine, "abc", temperature=2.0, seed=1)) != greedy
    assert ids(one(engine, "abc", temperature=2.0, seed=1, **option)) == greedy


# -- log probabilities -----------------------------------------------------------------------
def test_logprobs_are_a_dict_per_token_with_the_chosen_one(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    (completion,) = one(engine, "abc", logprobs=3).outputs
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids) == 12
    for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(entry) == 3 and entry[token_id].rank == 1, "greedy: the chosen one is the best"
        assert [item.rank for item in entry.values()] == [1, 2, 3]
    chosen = [e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(chosen))
    assert all(value <= 0 for value in chosen)
    (only_chosen,) = one(engine, "abc", logprobs=0, temperature=4.0, seed=2).outputs
    assert only_chosen.logprobs is not None
    assert [list(entry) for entry in only_chosen.logprobs] == [[t] for t in only_chosen.token_ids]
    assert one(engine, "abc").outputs[0].logprobs is None


@pytest.mark.parametrize("chunk", [0, 7])
def test_g4_prompt_logprobs_with_prefix_cache_equal_cold_values(
    load_tiny: Load, chunk: int
) -> None:
    prompt = [(13 * i) % 200 + 2 for i in range(70)]
    cold_engine = make_engine(load_tiny(), enable_prefix_caching=False)
    cold = one(cold_engine, prompt, prompt_logprobs=2)
    engine = make_engine(load_tiny(), long_prefill_token_threshold=chunk)
    one(engine, prompt)
    for _ in range(2):
        warm = one(engine, prompt, prompt_logprobs=2)
        assert warm.prompt_logprobs == cold.prompt_logprobs
        assert ids(warm) == ids(cold)
    assert cold.prompt_logprobs is not None
    assert cold.prompt_logprobs[0] is None and len(cold.prompt_logprobs) == len(prompt)
    for token_id, entry in zip(prompt[1:], cold.prompt_logprobs[1:], strict=True):
        assert entry is not None and token_id in entry and len(entry) in (2, 3)
    assert one(engine, prompt).num_cached_tokens > 0, "others still hit"


def test_prompt_logprobs_survive_preemption(load_tiny: Load) -> None:
    prompt = [(13 * i) % 200 + 2 for i in range(40)]
    jobs = [
        Job(prompt=[3 + k, *prompt], params=params(prompt_logprobs=0, max_tokens=30))
        for k in range(2)
    ]
    roomy = run_jobs(make_engine(load_tiny()), jobs)
    tight = make_engine(load_tiny(), num_blocks=7, preemption_mode="recompute")
    outputs = run_jobs(tight, jobs)
    assert tight.scheduler.num_preemptions["recompute"] > 0
    assert [o.prompt_logprobs for o in outputs] == [o.prompt_logprobs for o in roomy]


# -- prefix cache and completions ------------------------------------------------------------
def test_second_identical_prompt_hits(load_tiny: Load) -> None:
    engine, prompt = make_engine(load_tiny()), [(7 * i) % 200 + 2 for i in range(50)]
    first, second = one(engine, prompt), one(engine, prompt)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 49, "all but the token whose logits are needed"
    assert ids(first) == ids(second)
    uncached = make_engine(load_tiny(), enable_prefix_caching=False)
    assert [one(uncached, prompt).num_cached_tokens for _ in range(2)] == [0, 0]


def test_shared_prefix_of_40_tokens_hits_40(load_tiny: Load) -> None:
    engine, prefix = make_engine(load_tiny()), [(7 * i) % 200 + 2 for i in range(40)]
    one(engine, [*prefix, 3, 4, 5])
    assert one(engine, [*prefix, 9, 8]).num_cached_tokens == 40


def test_salt_separates_and_rejoins(load_tiny: Load) -> None:
    engine, prompt = make_engine(load_tiny()), [(7 * i) % 200 + 2 for i in range(50)]

    def cached(salt: str) -> int:
        engine.add_request(prompt, params(), cache_salt=salt)
        outputs = []
        while engine.has_unfinished_requests:
            outputs += engine.step()
        return outputs[-1].num_cached_tokens

    assert [cached(salt) for salt in ("a", "b", "", "a", "b", "")] == [0, 0, 0, 49, 49, 49]


def test_completions_of_one_prompt_share_its_blocks(load_tiny: Load) -> None:
    engine = make_engine(load_tiny(), enable_prefix_caching=False)
    free = engine.scheduler.kv.num_free_blocks
    engine.add_request([5] * 70, params(n=3, temperature=1.0, seed=1))
    for _ in range(3):
        engine.step()
    assert len(engine.scheduler.running) == 3
    assert free - engine.scheduler.kv.num_free_blocks == 4 + 3, "4 of the prompt, 1 of each"
    while engine.has_unfinished_requests:
        (output,) = engine.step() or [None]
    assert output is not None
    assert len({tuple(c.token_ids) for c in output.outputs}) == 3
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert output.num_cached_tokens == 0
    assert engine.scheduler.kv.num_free_blocks == free


def test_chat_template_that_writes_bos_gets_no_second_one(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "with_bos"
    shutil.copytree(tiny_folder("llama3"), folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["add_bos_token"] = True
    config["chat_template"] = "{{ bos_token }}" + config["chat_template"]
    path.write_text(json.dumps(config))
    llm = LLM(str(folder), kv_cache_memory="2MiB", threads=2)
    (chat,) = llm.chat([{"role": "user", "content": "hi"}], params(max_tokens=2))
    (plain,) = llm.generate("hi", params(max_tokens=2))
    assert list(chat.prompt_token_ids).count(0) == 1 == list(plain.prompt_token_ids).count(0)
    assert chat.prompt_token_ids[0] == plain.prompt_token_ids[0] == 0


def test_generation_defaults_of_the_folder_are_used(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "with_defaults"
    shutil.copytree(tiny_folder("llama3"), folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": False, "max_new_tokens": 3, "eos_token_id": [1, 44]})
    )
    llm = LLM(str(folder), kv_cache_memory="2MiB", threads=2)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)
    assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 3
    (output,) = llm.generate("abc", SamplingParams(logit_bias={44: 100.0}))
    assert output.outputs[0].token_ids == [44] and output.outputs[0].finish_reason == "stop"
