"""Updates go in by hand; a stub stands for the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.request import RequestStatus
from chairlift.core.scheduler_output import RequestUpdate
from chairlift.engine.input_processor import InputProcessor
from chairlift.engine.loaded_model import LoadedModel
from chairlift.engine.output_processor import OutputProcessor
from chairlift.outputs import PositionLogprobs, RequestOutput, TokenLogprob
from chairlift.sampling_params import SamplingParams

EOS = 1


@dataclass
class StubScheduler:
    """Ends requests when told, as the real one does: the end comes back as an update."""

    holds_finished: bool = False
    finished: list[tuple[str, RequestStatus, Any]] = field(default_factory=list)
    updates: list[RequestUpdate] = field(default_factory=list)

    @property
    def batching(self) -> SimpleNamespace:
        return SimpleNamespace(holds_finished=self.holds_finished)

    def finish(
        self, request_id: str, status: RequestStatus, *, stop_reason: Any = None, error: Any = None
    ) -> None:
        self.finished.append((request_id, status, stop_reason or error))
        self.updates.append(
            RequestUpdate(
                request_id=request_id, finish_reason="stop", is_released=not self.holds_finished
            )
        )

    def take_updates(self) -> list[RequestUpdate]:
        taken, self.updates = self.updates, []
        return taken


class Desk:
    """An output processor with one request "r"."""

    def __init__(
        self,
        processor: InputProcessor,
        model: LoadedModel,
        *,
        is_streaming: bool = True,
        holds_finished: bool = False,
        **params: Any,
    ) -> None:
        self.encode = model.tokenizer.encode
        self.tokenizer = model.tokenizer
        self.scheduler = StubScheduler(holds_finished)
        self.outputs = OutputProcessor(model.tokenizer, self.scheduler)  # type: ignore[arg-type]
        self.request = processor.process("hi", SamplingParams(**params), request_id="r")
        self.outputs.add(self.request, is_streaming=is_streaming)
        self.now = 10.0

    def say(
        self, text: str | list[int], request_id: str = "r", **fields: Any
    ) -> RequestOutput | None:
        """One update with the tokens of `text`; what the caller sees."""
        ids = self.encode(text) if isinstance(text, str) else text
        if fields.get("finish_reason"):
            fields.setdefault("is_released", not self.scheduler.holds_finished)
        update = RequestUpdate(request_id=request_id, new_token_ids=ids, **fields)
        self.now += 1
        handed_over = self.outputs.process([update], self.now)
        assert len(handed_over) <= 1
        return handed_over[0] if handed_over else None


@pytest.fixture
def desk(
    make_input_processor: Callable[..., InputProcessor], load_tiny: Callable[..., LoadedModel]
) -> Callable[..., Desk]:
    return lambda **options: Desk(make_input_processor(), load_tiny(), **options)


def seen(output: RequestOutput | None) -> RequestOutput:
    assert output is not None
    return output


def test_outputs_are_cumulative_copies(desk: Callable[..., Desk]) -> None:
    here = desk(max_tokens=20)
    first = seen(here.say("ab"))
    second = seen(here.say("cd"))
    assert [o.outputs[0].text for o in (first, second)] == ["ab", "abcd"]
    assert [len(o.outputs[0].token_ids) for o in (first, second)] == [2, 4]
    assert not second.finished and second.prompt == "hi"
    last = seen(here.say("e", finish_reason="length"))
    assert last.finished and last.outputs[0].finish_reason == "length"
    assert last.outputs[0].stop_reason is None
    assert len(here.outputs) == 0 and "r" not in here.outputs


def test_end_token_is_among_the_ids_and_not_in_the_text(desk: Callable[..., Desk]) -> None:
    here = desk(skip_special_tokens=False)
    last = seen(here.say([*here.encode("ab"), EOS], finish_reason="stop", stop_reason=EOS))
    (completion,) = last.outputs
    assert completion.text == "ab" and completion.token_ids == [*here.encode("ab"), EOS]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


@pytest.mark.parametrize("is_included", [False, True])
def test_stop_token_that_was_asked_for_is_named(
    desk: Callable[..., Desk], is_included: bool
) -> None:
    (stop,) = desk().encode("c")
    here = desk(stop_token_ids=[stop], include_stop_str_in_output=is_included)
    last = seen(here.say("abc", finish_reason="stop", stop_reason=stop))
    assert last.outputs[0].text == ("abc" if is_included else "ab")
    assert last.outputs[0].stop_reason == stop and len(last.outputs[0].token_ids) == 3


@pytest.mark.parametrize("is_included", [False, True])
def test_stop_string_over_several_updates_does_not_leak(
    desk: Callable[..., Desk], is_included: bool
) -> None:
    here = desk(stop=["own fox"], include_stop_str_in_output=is_included, max_tokens=99)
    texts = [seen(here.say(c)).outputs[0].text for c in "br own fo"]
    if not is_included:
        assert texts[-1] == "br "
        assert all("br own fo".startswith(text) for text in texts)
    last = seen(here.say("x"))
    assert last.finished and last.outputs[0].finish_reason == "stop"
    assert last.outputs[0].stop_reason == "own fox"
    assert last.outputs[0].text == ("br own fox" if is_included else "br ")
    assert here.scheduler.finished == [("r", RequestStatus.FINISHED_STOPPED, "own fox")]


def test_what_was_held_back_is_told_at_the_end(desk: Callable[..., Desk]) -> None:
    here = desk(stop=["own fox"])
    assert seen(here.say("an own f")).outputs[0].text == "an "
    assert seen(here.say("", finish_reason="length")).outputs[0].text == "an own f"


def test_stop_string_with_the_last_token_counts_as_stop(desk: Callable[..., Desk]) -> None:
    here = desk(stop=["b"])
    last = seen(here.say("ab", finish_reason="length"))
    assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("stop", "b")
    assert here.scheduler.finished == [], "it has ended there already"


def test_stop_string_before_min_tokens_is_text(desk: Callable[..., Desk]) -> None:
    here = desk(stop=["b"], min_tokens=3)
    assert not seen(here.say("abb")).finished
    last = seen(here.say("cb"))
    assert last.finished and last.outputs[0].text == "abbc"


def test_broken_character_comes_out_at_the_end_only(desk: Callable[..., Desk]) -> None:
    here = desk()
    ids = here.encode("é")
    assert seen(here.say(ids[:1])).outputs[0].text == ""
    assert seen(here.say([], finish_reason="length")).outputs[0].text == "\ufffd"


def test_without_detokenize_there_are_ids_only(desk: Callable[..., Desk]) -> None:
    here = desk(detokenize=False)
    last = seen(here.say("ab", finish_reason="length"))
    assert last.outputs[0].text == "" and len(last.outputs[0].token_ids) == 2


def test_without_streaming_only_the_end_is_told(desk: Callable[..., Desk]) -> None:
    here = desk(is_streaming=False)
    assert here.say("ab") is None
    assert seen(here.say("c", finish_reason="length")).outputs[0].text == "abc"


def test_logprobs_have_the_chosen_token_first(desk: Callable[..., Desk]) -> None:
    here = desk(logprobs=2)
    a, b = here.encode("ab")
    position = PositionLogprobs(
        TokenLogprob(b, -1.5, 2), (TokenLogprob(a, -0.5, 1), TokenLogprob(b, -1.5, 2))
    )
    here.say([b], logprobs=[position])
    last = seen(here.say([b], logprobs=[position], finish_reason="length"))
    (completion,) = last.outputs
    assert completion.logprobs is not None and len(completion.logprobs) == 2
    entry = completion.logprobs[0]
    assert list(entry) == [b, a]
    assert (entry[b].logprob, entry[b].rank, entry[b].decoded_token) == (-1.5, 2, "b")
    assert completion.cumulative_logprob == -3.0


def test_prompt_logprobs_begin_with_none_and_come_from_the_first_completion(
    desk: Callable[..., Desk],
) -> None:
    here = desk(prompt_logprobs=0, n=2)
    position = PositionLogprobs(TokenLogprob(5, -1.0, 1))
    for child in ("r#0", "r#1"):
        output = seen(here.say("a", child, prompt_logprobs=[position]))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 2


def test_all_completions_make_one_output(desk: Callable[..., Desk]) -> None:
    here = desk(n=2)
    assert not seen(here.say("ab", "r#1", finish_reason="length")).finished
    last = seen(here.say("cd", "r#0", finish_reason="stop", stop_reason=EOS))
    assert last.finished
    assert [(c.index, c.text) for c in last.outputs] == [(0, "c"), (1, "ab")]


def test_cached_tokens_are_those_of_the_prefix_cache_not_of_siblings(
    desk: Callable[..., Desk],
) -> None:
    here = desk(n=2)
    here.say("a", "r#0", num_cached_tokens=1)
    assert seen(here.say("a", "r#1", num_cached_tokens=2)).num_cached_tokens == 1


def test_fault_in_one_text_ends_that_request_only(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = desk(n=2)
    _, completion = here.outputs._children["r#0"]

    def broken(ids: list[int]) -> str:
        raise LookupError("no such piece")

    completion.detokenizer = SimpleNamespace(push=broken)  # type: ignore[assignment]
    output = seen(here.say("ab", "r#0"))
    assert output.outputs[0].finish_reason == "error"
    assert "no such piece" in (output.outputs[0].error or "")
    assert [entry[:2] for entry in here.scheduler.finished] == [
        ("r#0", RequestStatus.FINISHED_ERROR)
    ]
    last = seen(here.say("ab", "r#1", finish_reason="length"))
    assert last.finished and last.outputs[1].text == "ab" and last.outputs[1].error is None


def test_static_batch_hands_over_when_it_lets_go(desk: Callable[..., Desk]) -> None:
    here = desk(holds_finished=True)
    assert here.say("ab") is None
    assert here.say("c", finish_reason="length") is None
    last = seen(here.say("", is_released=True))
    assert last.finished and last.outputs[0].text == "abc"
    metrics = last.metrics
    assert metrics.first_token_time == metrics.finished_time == 13.0
    assert metrics.token_times == [13.0, 13.0]


def test_times_of_the_tokens(desk: Callable[..., Desk]) -> None:
    here = desk()
    here.say("")
    here.say("a")
    metrics = seen(here.say("b", finish_reason="length")).metrics
    assert (metrics.first_token_time, metrics.last_token_time) == (12.0, 13.0)
    assert (metrics.token_times, metrics.finished_time) == ([12.0, 13.0], 13.0)


def test_updates_of_others_wait_for_their_step(desk: Callable[..., Desk]) -> None:
    """An abort books its own update: it must not swallow what happened to somebody else."""
    here = desk()
    here.scheduler.updates.append(RequestUpdate(request_id="other", is_released=True))
    here.say("", finish_reason="abort")
    assert [update.request_id for update in here.scheduler.take_updates()] == ["other"]


def test_update_for_nobody_is_ignored(desk: Callable[..., Desk]) -> None:
    assert desk().say("a", "gone") is None
