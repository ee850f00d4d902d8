from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chairlift.engine.input_processor import InputProcessor, child_id
from chairlift.errors import RequestError
from chairlift.sampling_params import SamplingParams

Make = Callable[..., InputProcessor]


def test_prompt_forms_give_the_same_tokens(make_input_processor: Make) -> None:
    processor = make_input_processor()
    as_text = processor.process("abc")
    ids = list(as_text.prompt_token_ids)
    assert as_text.prompt == "abc" and len(ids) == 3
    assert processor.process({"prompt": "abc"}).prompt_token_ids == tuple(ids)
    for prompt in (ids, tuple(ids), {"prompt_token_ids": ids}):
        processed = processor.process(prompt)
        assert processed.prompt_token_ids == tuple(ids) and processed.prompt is None
    both = processor.process({"prompt": "shown", "prompt_token_ids": ids})
    assert (both.prompt, both.prompt_token_ids) == ("shown", tuple(ids))


@pytest.mark.parametrize(
    ("prompt", "field", "words"),
    [
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ({}, "prompt", "needs"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": 5}, "prompt", "text"),
        ({"prompt": 5, "prompt_token_ids": [3]}, "prompt", "text"),
        ({"prompt": None, "prompt_token_ids": None}, "prompt", "needs"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids", "list"),
        ({"prompt_token_ids": 7}, "prompt_token_ids", "list"),
        ({"prompt": "a", "images": []}, "prompt", "'images'"),
        ({1: 2, "b": 3}, "prompt", "no key"),
        (None, "prompt", "NoneType"),
        (5, "prompt", "int"),
        (b"abc", "prompt", "bytes"),
        ([3, 256], "prompt_token_ids", "256"),
        ([3, -1], "prompt_token_ids", "-1"),
        ([3, True], "prompt_token_ids", "True"),
        ([3, 2.0], "prompt_token_ids", "2.0"),
        ([3, None], "prompt_token_ids", "None"),
        (["ab", "cd"], "prompt_token_ids", "'ab'"),
        ([3] * 32, "prompt", "may have 31"),
        ("x" * 32, "prompt", "may have 31"),
        ("x" * (32 * 512 + 1), "prompt", "characters"),
        ("a\ud800b", "prompt", "surrogate"),
    ],
)
def test_bad_prompt_is_refused_by_name(
    make_input_processor: Make, prompt: Any, field: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        make_input_processor().process(prompt)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"params": {"temperature": 0}}, "sampling_params"),
        ({"params": "greedy"}, "sampling_params"),
        ({"params": SamplingParams(logit_bias={256: 1.0})}, "logit_bias"),
        ({"params": SamplingParams(stop_token_ids=[256])}, "stop_token_ids"),
        ({"params": SamplingParams(allowed_token_ids=[2, 256])}, "allowed_token_ids"),
        ({"params": SamplingParams(bad_words=["\udc00"])}, "bad_words"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"request_id": 5}, "request_id"),
        ({"cache_salt": None}, "cache_salt"),
        ({"cache_salt": b"x"}, "cache_salt"),
    ],
)
def test_bad_option_is_refused_by_name(
    make_input_processor: Make, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        make_input_processor().process("abc", options.pop("params", None), **options)
    assert caught.value.field == field


def test_max_tokens_ends_with_the_context(make_input_processor: Make) -> None:
    processor = make_input_processor(max_model_len=10)
    for asked, granted in ((None, 7), (3, 3), (7, 7), (100, 7)):
        processed = processor.process("abc", SamplingParams(max_tokens=asked))
        assert processed.children[0].max_tokens == granted
    assert processor.process("a" * 9, SamplingParams()).children[0].max_tokens == 1


def test_model_defaults_serve_requests_without_params(make_input_processor: Make) -> None:
    defaults = SamplingParams(temperature=0.25, top_k=7)
    processor = make_input_processor(defaults=defaults)
    assert processor.process("abc").params is defaults
    assert processor.process("abc", SamplingParams()).params == SamplingParams()


def test_end_tokens_of_the_model_end_it_unless_ignored(make_input_processor: Make) -> None:
    processor = make_input_processor()
    asked = SamplingParams(stop_token_ids=[9])
    assert processor.process("abc", asked).children[0].stop_token_ids == {1, 9}
    ignoring = SamplingParams(stop_token_ids=[9], ignore_eos=True)
    assert processor.process("abc", ignoring).children[0].stop_token_ids == {9}


def test_n_becomes_children_that_fork_the_first(make_input_processor: Make) -> None:
    params = SamplingParams(n=3, seed=8)
    processed = make_input_processor().process("abc", params, request_id="r", cache_salt="s")
    assert [child.request_id for child in processed.children] == ["r#0", "r#1", "r#2"]
    assert [child.fork_of for child in processed.children] == [None, "r#0", "r#0"]
    assert [child.choice_index for child in processed.children] == [0, 1, 2]
    assert {child.seed for child in processed.children} == {8}
    assert {child.cache_salt for child in processed.children} == {"s"}
    assert child_id("r", 0, 1) == "r"


def test_prompt_logprobs_compute_every_position(make_input_processor: Make) -> None:
    processor = make_input_processor()
    plain = processor.process("abc").children[0]
    scored = processor.process("abc", SamplingParams(prompt_logprobs=0)).children[0]
    assert plain.use_prefix_cache and not scored.use_prefix_cache


def test_drawn_seeds_repeat_with_the_engines_seed_and_differ_without(
    make_input_processor: Make,
) -> None:
    def seeds(seed: int | None) -> list[int]:
        processor = make_input_processor(seed=seed)
        return [processor.process("abc").children[0].seed for _ in range(4)]

    assert seeds(3) == seeds(3) != seeds(4)
    assert len(set(seeds(3))) == 4
    assert seeds(None) != seeds(None)


def test_refused_request_draws_no_seed(make_input_processor: Make) -> None:
    processor, other = make_input_processor(seed=3), make_input_processor(seed=3)
    with pytest.raises(RequestError):
        processor.process("")
    assert processor.process("abc").children[0].seed == other.process("abc").children[0].seed


def test_bad_words_are_forbidden_at_the_start_and_after_a_space(
    make_input_processor: Make,
) -> None:
    processor = make_input_processor()
    words = SamplingParams(bad_words=["ab"])
    (child,) = processor.process("x", words).children
    ids = {text: processor.process(text).prompt_token_ids for text in ("ab", " ab")}
    assert set(child.bad_word_ids) == set(ids.values())


def test_ids_are_counted_where_none_is_given(make_input_processor: Make) -> None:
    processor = make_input_processor()
    ids = [processor.process("abc").request_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert processor.process("abc", request_id="mine").request_id == "mine"
