from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.engine.llm import LLM
from chairlift.errors import ConfigError, RequestError
from chairlift.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
OPTIONS: dict[str, Any] = {"kv_cache_memory": "4MiB", "swap_space": 0.01, "threads": 2, "seed": 0}


@pytest.fixture(scope="module")
def shared_llm(tiny_folder: Callable[[str], Path]) -> LLM:
    return LLM(str(tiny_folder("llama3")), **OPTIONS)


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    """The engine must be idle and whole after every test."""
    yield shared_llm
    engine = shared_llm.engine
    assert not engine.has_unfinished_requests
    assert shared_llm._newest == {}
    engine.scheduler.check_integrity()
    assert engine.scheduler.kv.num_free_blocks == engine.scheduler.kv.pool.num_usable_blocks
    assert engine.scheduler.kv.num_steps_in_flight == 0, "a step was submitted and never read"


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [9, 2, 5]
    outputs = llm.generate(
        ["abc", "defg", "h"],
        [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths],
    )
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert [output.prompt for output in outputs] == ["abc", "defg", "h"]
    assert all(output.finished for output in outputs)


def test_prompt_forms(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    (text,) = texts(llm.generate("abc", GREEDY))
    for prompt in (ids, tuple(ids), {"prompt": "abc"}, {"prompt_token_ids": ids}):
        assert texts(llm.generate(prompt, GREEDY)) == [text]
    many = llm.generate(["abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}], GREEDY)
    assert texts(many) == [text] * 4
    assert texts(llm.generate([ids, ids], GREEDY)) == [text] * 2
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompts", "params", "named", "field"),
    [
        (5, GREEDY, {}, "prompts"),
        (b"abc", GREEDY, {}, "prompts"),
        ([[]], GREEDY, {}, "prompt"),
        (["abc", ""], GREEDY, {}, "prompt"),
        (["abc", [3, 999]], GREEDY, {}, "prompt_token_ids"),
        ("abc", {"temperature": 0}, {}, "sampling_params"),
        ("abc", "greedy", {}, "sampling_params"),
        ("abc", 5, {}, "sampling_params"),
        (["abc", "d"], [GREEDY], {}, "sampling_params"),
        (["abc", "d"], [GREEDY, "greedy"], {}, "sampling_params"),
        ("abc", GREEDY, {"priority": [1, 2]}, "priority"),
        ("abc", GREEDY, {"priority": ["high"]}, "priority"),
    ],
)
def test_bad_input_is_named_before_anything_runs(
    llm: LLM, prompts: Any, params: Any, named: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, params, **named)
    assert caught.value.field == field
    assert not llm.engine.has_unfinished_requests


def test_g6_unknown_or_unsupported_options_are_refused_by_name(
    tiny_folder: Callable[[str], Path],
) -> None:
    folder = str(tiny_folder("llama3"))
    with pytest.raises(TypeError, match="'max_num_sequences'"):
        LLM(folder, max_num_sequences=5)
    with pytest.raises(ConfigError) as caught:
        LLM(folder, tensor_parallel_size=2)
    assert caught.value.field == "tensor_parallel_size"
    for name in ("best_of", "use_beam_search", "max_length"):
        with pytest.raises(TypeError, match=name):
            SamplingParams(**{name: 2})


def test_without_params_the_models_defaults_are_used(llm: LLM) -> None:
    (output,) = llm.generate("abc")
    assert llm.get_default_sampling_params() == SamplingParams()
    assert len(output.outputs[0].token_ids) <= 16


def test_max_tokens_none_runs_to_the_end_of_the_context(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (output,) = llm.generate("abc", params)
    assert 3 + len(output.outputs[0].token_ids) == 256
    assert output.outputs[0].finish_reason == "length"


def test_chat_writes_the_template_and_takes_one_or_many(llm: LLM) -> None:
    one = [{"role": "user", "content": "hi"}]
    other = [{"role": "system", "content": "s"}, *one]
    assert llm.render_chat(one) == "user: hi\nassistant:"
    assert llm.render_chat(one, add_generation_prompt=False) == "user: hi\n"
    (single,) = llm.chat(one, GREEDY)
    many = llm.chat([one, other], GREEDY)
    assert texts(many)[0] == single.outputs[0].text
    assert [output.prompt for output in many] == [llm.render_chat(one), llm.render_chat(other)]


def test_stream_is_cumulative_and_equals_generate(llm: LLM) -> None:
    outputs = list(llm.stream("abc", GREEDY))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5, 6]
    assert [output.finished for output in outputs] == [False] * 5 + [True]
    assert texts(llm.generate("abc", GREEDY)) == [outputs[-1].outputs[0].text]


def test_stream_left_early_aborts(llm: LLM) -> None:
    stream = llm.stream("abc", LONG)
    next(stream)
    stream.close()
    assert not llm.engine.scheduler.has_requests
    llm.generate("abc", GREEDY)


def test_streams_may_be_read_in_turn(llm: LLM) -> None:
    """Each reader steps the engine for all: no output may get lost on the way."""
    first, second = llm.stream("abc", GREEDY), llm.stream("xyz", LONG)
    next(first)
    last_of_second = list(second)[-1]
    last_of_first = list(first)[-1]
    assert [last_of_first.outputs[0].text, last_of_second.outputs[0].text] == [
        *texts(llm.generate("abc", GREEDY)),
        *texts(llm.generate("xyz", LONG)),
    ]


def test_generate_inside_a_stream(llm: LLM) -> None:
    (expected,) = texts(llm.generate("abc", GREEDY))
    stream = llm.stream("abc", GREEDY)
    next(stream)
    llm.generate("xyz", LONG)
    assert list(stream)[-1].outputs[0].text == expected


@pytest.mark.parametrize("where", ["executor", "step", "between"])
def test_interrupted_generate_aborts_and_the_engine_is_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    engine = llm.engine
    expected = texts(llm.generate(["abc", "xyz"], LONG))
    owner, name = {
        "executor": (engine.model.runner, "submit"),
        "step": (engine.scheduler, "schedule"),
        "between": (engine, "step"),
    }[where]
    original, num_calls = getattr(owner, name), 0

    def interrupted(*args: object) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 4:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "xyz", "more"], LONG)
    assert not engine.scheduler.has_requests
    monkeypatch.undo()
    assert texts(llm.generate(["abc", "xyz"], LONG)) == expected


def test_close_may_be_called_twice(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    llm = LLM(str(tiny_folder("llama3")), trace=str(path), **OPTIONS)
    llm.generate("abc", GREEDY)
    llm.close()
    llm.close()
    assert len(path.read_text().splitlines()) == 6


def test_bar_shows_requests_and_rates_on_a_terminal(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.generate("abc", GREEDY)
    assert "tok/s" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    llm.generate(["abc", "d"], GREEDY)
    shown = capsys.readouterr().err
    assert "2/2" in shown and "tok/s" in shown
    llm.generate("abc", GREEDY, use_tqdm=False)
    assert "tok/s" not in capsys.readouterr().err


@pytest.mark.parametrize("kernels", ["native", "int8"])
def test_a_context_shorter_than_the_first_probe(
    tiny_folder: Callable[[str], Path], kernels: str
) -> None:
    llm = LLM(str(tiny_folder("llama3")), **OPTIONS, max_model_len=9, kernels=kernels)
    output = llm.generate([[5, 6, 7, 8]], LONG, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 5 and output.finish_reason == "length"
