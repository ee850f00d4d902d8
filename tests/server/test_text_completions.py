"""Text completions: prompts of all forms, echo, log probabilities, several choices."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.server.protocol.completion import TextCompletion, TextCompletionChunk
from http_harness import RunningServer

IDS = [10, 20, 30, 40, 50]


def test_answer_has_the_shape_of_the_specification(server: RunningServer) -> None:
    answer = server.complete("abc")
    parsed = TextCompletion.model_validate(answer.json)
    assert parsed.id.startswith("cmpl-") and parsed.choices[0].logprobs is None
    assert answer.json["object"] == "text_completion"
    assert parsed.usage.completion_tokens <= 8


def test_default_is_16_tokens(server: RunningServer) -> None:
    answer = server.complete("abc", max_tokens=None, ignore_eos=True)
    assert answer.json["usage"]["completion_tokens"] == 16


def test_choices_come_by_prompt_then_by_choice(server: RunningServer) -> None:
    options: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    prompts = ["abc", "x", "hello there"]
    answer = server.complete(prompts, echo=True, **options)
    choices = answer.json["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [choice["text"][: len(p)] for p, choice in zip(
        [p for p in prompts for _ in range(2)], choices, strict=True
    )] == [p for p in prompts for _ in range(2)]  # fmt: skip
    assert answer.json["usage"]["completion_tokens"] == 6 * 8
    streamed = [""] * 6
    ends = []
    for event in server.complete(prompts, echo=True, stream=True, **options).events[:-1]:
        TextCompletionChunk.model_validate(event)
        assert event["object"] == "text_completion"
        (choice,) = event["choices"]
        streamed[choice["index"]] += choice["text"]
        if choice["finish_reason"] is not None:
            ends.append(choice["index"])
    assert streamed == [choice["text"] for choice in choices] and sorted(ends) == list(range(6))


@pytest.mark.parametrize("prompt", ["abc", ["abc"], IDS, [IDS], [IDS, IDS[:2]], ["a", "b"]])
def test_every_form_of_prompt(server: RunningServer, prompt: Any) -> None:
    answer = server.complete(prompt)
    many = isinstance(prompt[0], list) or (isinstance(prompt, list) and isinstance(prompt[0], str))
    assert len(answer.json["choices"]) == (len(prompt) if many else 1)


def test_token_prompts_are_taken_as_they_are(server: RunningServer) -> None:
    answer = server.complete(IDS, echo=True, logprobs=0, max_tokens=1, ignore_eos=True)
    assert answer.json["usage"]["prompt_tokens"] == len(IDS)
    tokenizer = server.engine.model.tokenizer
    names = [tokenizer.token_text(token_id) for token_id in IDS]
    assert answer.json["choices"][0]["logprobs"]["tokens"][:-1] == names


def test_null_prompt_is_the_beginning_of_a_text(server: RunningServer) -> None:
    body = {"model": "tiny", "prompt": None, "max_tokens": 2}
    answer = server.post("/v1/completions", body)
    assert answer.status == 200 and answer.json["usage"]["prompt_tokens"] == 1


def test_echo_with_logprobs_is_what_scoring_needs(server: RunningServer) -> None:
    """The figures by which evaluation harnesses compare answers."""
    answer = server.complete(IDS, echo=True, logprobs=2, max_tokens=1, ignore_eos=True)
    choice = answer.json["choices"][0]
    logprobs = choice["logprobs"]
    lengths = {len(logprobs[key]) for key in logprobs}
    assert lengths == {len(IDS) + 1}
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    for name, value, top in list(
        zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    )[1:]:
        assert top[name] == value, "the chosen token has the very same figure in its own list"
        assert 2 <= len(top) <= 3 and value >= -9999.0
    generated = logprobs["token_logprobs"][-1]
    assert generated == max(logprobs["top_logprobs"][-1].values()), "greedy"
    text = choice["text"]
    offsets = logprobs["text_offset"]
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(text)


def test_scoring_gives_the_same_figures_every_time(server: RunningServer) -> None:
    """A cached prompt is scored like a new one."""
    first, second = (
        server.complete(IDS * 8, echo=True, logprobs=1, max_tokens=1).json["choices"][0]
        for _ in range(2)
    )
    assert first == second


def test_max_tokens_0_scores_and_generates_nothing(server: RunningServer) -> None:
    scored = server.complete("abcde", echo=True, logprobs=1, max_tokens=0)
    assert scored.status == 200
    choice = scored.json["choices"][0]
    assert choice["text"] == "abcde" and choice["finish_reason"] == "length"
    count = scored.json["usage"]
    assert count["completion_tokens"] == 0 and count["total_tokens"] == count["prompt_tokens"]
    with_one = server.complete("abcde", echo=True, logprobs=1, max_tokens=1, ignore_eos=True)
    longer = with_one.json["choices"][0]["logprobs"]["token_logprobs"]
    assert longer[:-1] == choice["logprobs"]["token_logprobs"]
    streamed = server.complete("abcde", echo=True, logprobs=1, max_tokens=0, stream=True).events
    assert "".join(e["choices"][0]["text"] for e in streamed[:-1]) == "abcde"
    assert streamed[0]["choices"][0]["logprobs"] == choice["logprobs"]


def test_logprobs_streamed_equal_the_whole(server: RunningServer) -> None:
    options = {"logprobs": 2, "echo": True, "temperature": 1.0, "seed": 2, "ignore_eos": True}
    whole = server.complete("abc", **options).json["choices"][0]["logprobs"]
    parts = [
        event["choices"][0]["logprobs"]
        for event in server.complete("abc", stream=True, **options).events[:-1]
        if event["choices"][0]["logprobs"]
    ]
    for key in whole:
        assert [item for part in parts for item in part[key]] == whole[key]


def test_end_token_counts_among_the_tokens(server: RunningServer) -> None:
    """Biased so that the model ends at once: text and tokens agree on that."""
    eos = server.engine.model.tokenizer.eos_id
    answer = server.complete("abc", logit_bias={str(eos): 100}, logprobs=0)
    choice = answer.json["choices"][0]
    assert choice["text"] == "" and choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["tokens"]) == 1 == answer.json["usage"]["completion_tokens"]


def test_best_of_returns_the_most_likely(server: RunningServer) -> None:
    options = {"temperature": 1.5, "seed": 11, "ignore_eos": True, "logprobs": 0}
    everything = server.complete("abc", n=6, **options).json["choices"]
    best = server.complete("abc", n=2, best_of=6, **options)
    totals = sorted((sum(c["logprobs"]["token_logprobs"]) for c in everything), reverse=True)
    found = [sum(c["logprobs"]["token_logprobs"]) for c in best.json["choices"]]
    assert found == pytest.approx(totals[:2])
    assert best.json["usage"]["completion_tokens"] == 6 * 8
    hidden = server.complete("abc", n=1, best_of=3, **{**options, "logprobs": None})
    assert hidden.json["choices"][0]["logprobs"] is None


def test_add_special_tokens_may_be_left_out(server: RunningServer) -> None:
    tokens = {
        flag: server.post("/tokenize", {"prompt": "abc", "add_special_tokens": flag}).json["count"]
        for flag in (True, False)
    }
    for flag, count in tokens.items():
        answer = server.complete("abc", add_special_tokens=flag)
        assert answer.json["usage"]["prompt_tokens"] == count


def test_all_ids_forbidden_still_ends_by_length(server: RunningServer) -> None:
    bias = {str(token_id): -100 for token_id in range(256)}
    answer = server.complete("abc", logit_bias=bias, logprobs=1, ignore_eos=True)
    assert answer.status == 200 and b"NaN" not in answer.body and b"nfinity" not in answer.body
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_stop_string_is_told(server: RunningServer) -> None:
    text = server.complete("abc", max_tokens=12, ignore_eos=True).json["choices"][0]["text"]
    stop = text[3:5]
    choice = server.complete("abc", max_tokens=12, ignore_eos=True, stop=stop).json["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert choice["text"] == text[: text.index(stop)]
    kept = server.complete(
        "abc", max_tokens=12, ignore_eos=True, stop=[stop], include_stop_str_in_output=True
    ).json["choices"][0]
    assert kept["text"] == text[: text.index(stop) + len(stop)]
