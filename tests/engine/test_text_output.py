"""Streamed text against whole text: broken characters, stop strings over tokens, nothing lost.

The tiny model speaks single bytes, so at a high temperature nearly every character is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chairlift.core.scheduler_output import SampledToken
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.outputs import CompletionOutput
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.sampler import Sampler, SamplerOutput
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

Load = Callable[..., LoadedModel]
PROMPTS = ("🎿🏔️ 👩‍👩‍👧", "ขึ้นลิฟต์สกี", "Příliš žluťoučký kůň", "日本語")


def stream(engine: Engine, prompt: Any, params: SamplingParams) -> list[CompletionOutput]:
    """All outputs of one request as they are streamed."""
    engine.add_request(prompt, params)
    seen = []
    while engine.has_unfinished_requests:
        seen += [output.outputs[0] for output in engine.step()]
    return seen


def whole(engine: Engine, prompt: Any, params: SamplingParams) -> CompletionOutput:
    """The same without streaming."""
    engine.add_request(prompt, params, is_streaming=False)
    outputs = []
    while engine.has_unfinished_requests:
        outputs += engine.step()
    (output,) = outputs
    return output.outputs[0]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_g1_streamed_text_equals_whole_text_for_emoji_thai_and_czech(
    load_tiny: Load, prompt: str
) -> None:
    engine = make_engine(load_tiny())
    tokenizer = load_tiny().tokenizer
    for seed in range(3):
        params = SamplingParams(temperature=3.0, seed=seed, max_tokens=60, ignore_eos=True)
        streamed, complete = stream(engine, prompt, params), whole(engine, prompt, params)
        assert streamed[-1] == complete
        assert complete.text == tokenizer.decode(complete.token_ids)
        assert "\ufffd" in complete.text, "the test wants broken characters"
        for before, after in zip(streamed, streamed[1:], strict=False):
            assert after.text.startswith(before.text), "text was taken back"


@pytest.fixture
def script(load_tiny: Load, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """script("brown fox") makes the model write just that, byte by byte, and then end."""

    def write(text: str) -> None:
        ids = [*load_tiny().tokenizer.encode(text), 1]

        def sample(self: Sampler, head: Any, states: Sequence[RequestSamplingState]) -> Any:
            tokens = [SampledToken(token_id=ids[state.num_output_tokens]) for state in states]
            return SamplerOutput(tokens=list(tokens), errors={})

        monkeypatch.setattr(Sampler, "sample", sample)

    return write


@pytest.mark.parametrize("text", PROMPTS)
def test_g1_characters_come_whole(
    load_tiny: Load, script: Callable[[str], None], text: str
) -> None:
    """A character of several bytes appears with its last byte, never as U+FFFD before."""
    script(text)
    texts = [
        out.text for out in stream(make_engine(load_tiny()), "x", SamplingParams(max_tokens=99))
    ]
    assert texts[-1] == text
    assert {"", *texts} == {text[:count] for count in range(len(text) + 1)}


@pytest.mark.parametrize("is_included", [False, True])
@pytest.mark.parametrize("stop", ["own fox", "🎿", "fox ju", "b", "never in there"])
def test_g2_stop_string_over_tokens_does_not_leak(
    load_tiny: Load, script: Callable[[str], None], stop: str, is_included: bool
) -> None:
    text = "the brown fox jumps 🏔🎿 over"
    script(text)
    params = SamplingParams(max_tokens=99, stop=stop, include_stop_str_in_output=is_included)
    streamed = stream(make_engine(load_tiny()), "x", params)
    expected = text.split(stop)[0]
    if is_included and stop in text:
        expected += stop
    assert streamed[-1].text == expected
    assert streamed[-1].stop_reason == (stop if stop in text else None)
    assert streamed[-1].finish_reason == "stop"
    assert all(expected.startswith(output.text) for output in streamed)
    assert streamed[-1] == whole(make_engine(load_tiny()), "x", params)


def test_g3_joined_deltas_equal_the_text_cut_at_the_stop(load_tiny: Load) -> None:
    """Random stops of the model's own text, many at once, at a high temperature."""
    engine = make_engine(load_tiny())
    for seed in range(8):
        options: dict[str, Any] = {
            "temperature": 2.0,
            "seed": seed,
            "max_tokens": 50,
            "ignore_eos": True,
        }
        text = whole(engine, "abc", SamplingParams(**options)).text
        stops = [text[i : i + 2] for i in range(10 + seed, 40, 7) if len(text) > i + 2]
        streamed = stream(engine, "abc", SamplingParams(**options, stop=stops))
        cut = min(text.index(stop) for stop in stops)
        joined, before = "", ""
        for output in streamed:
            assert output.text.startswith(before)
            joined += output.text[len(before) :]
            before = output.text
        assert joined == streamed[-1].text == text[:cut]


def test_stop_string_frees_its_request_in_the_same_step(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    free = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    output = whole(engine, "abc", free)
    stop = output.text[4]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, stop=stop)
    stopped = stream(engine, "abc", params)[-1]
    assert len(stopped.token_ids) < 20
    assert stopped.token_ids == output.token_ids[: len(stopped.token_ids)]
    assert engine.core.recorder.records[-1].num_decode_tokens <= 1
    engine.scheduler.check_integrity()


def test_min_tokens_holds_end_tokens_and_stop_strings_back(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    eager = {"temperature": 0.0, "logit_bias": {1: 100.0}, "max_tokens": 20}
    at_once = whole(engine, "abc", SamplingParams(**eager))  # type: ignore[arg-type]
    assert at_once.token_ids == [1] and at_once.text == ""
    assert (at_once.finish_reason, at_once.stop_reason) == ("stop", None)
    later = whole(engine, "abc", SamplingParams(**eager, min_tokens=7))  # type: ignore[arg-type]
    assert len(later.token_ids) == 8 and later.token_ids[-1] == 1
    ignoring = whole(engine, "abc", SamplingParams(**eager, ignore_eos=True))  # type: ignore[arg-type]
    assert len(ignoring.token_ids) == 20 and ignoring.finish_reason == "length"
    shown = SamplingParams(**eager, ignore_eos=True, skip_special_tokens=False)  # type: ignore[arg-type]
    assert whole(engine, "abc", shown).text == "<|eos|>" * 20
    assert ignoring.text == ""


def test_stop_token_is_named_and_ends_the_ids(load_tiny: Load) -> None:
    engine = make_engine(load_tiny())
    free = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    ids = whole(engine, "abc", free).token_ids
    stop = ids[6]
    params = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=[stop], ignore_eos=True)
    output = whole(engine, "abc", params)
    assert output.token_ids == ids[: ids.index(stop) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert output.text == load_tiny().tokenizer.decode(output.token_ids[:-1])


@pytest.mark.real_model
def test_every_end_token_of_a_chat_model_ends_the_answer(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    """Forced to its end of turn or its end of text, the model stops and shows neither."""
    model = load_default_model("native")
    ends = sorted(model.tokenizer.eos_ids)
    jobs = [
        Job(prompt="Hi", params=SamplingParams(temperature=0.0, allowed_token_ids=[end]))
        for end in ends
    ]
    for end, output in zip(ends, run_jobs(make_engine(model), jobs), strict=True):
        (completion,) = output.outputs
        assert completion.token_ids == [end] and completion.text == ""
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert {model.tokenizer.token_text(end) for end in ends} >= {"<|im_end|>", "<|endoftext|>"}
