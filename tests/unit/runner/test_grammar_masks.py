"""Masks from a thread: in order, one fault at a time, and never waited for without end."""

from __future__ import annotations

import gc
import threading
from typing import Any, cast

import numpy as np
import pytest

from chairlift.grammar.parser_limits import GrammarError
from chairlift.grammar.token_matcher import MaskArray, TokenMatcher
from chairlift.runner import grammar_masks
from chairlift.runner.grammar_masks import MaskThread


class Scripted:
    """A matcher that does what it is told."""

    def __init__(self, answer: MaskArray | Exception | threading.Event) -> None:
        self.answer = answer
        self.threads: list[str] = []

    def compute_mask(self) -> MaskArray:
        self.threads.append(threading.current_thread().name)
        if isinstance(self.answer, threading.Event):
            self.answer.wait()
            return np.zeros(1, dtype=np.uint32)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def matchers(**scripted: Scripted) -> dict[str, TokenMatcher]:
    return cast(dict[str, Any], scripted)


def test_masks_come_from_another_thread() -> None:
    thread, one = MaskThread(), np.ones(2, dtype=np.uint32)
    a, b = Scripted(one), Scripted(one * 2)
    for _ in range(3):
        masks, errors = thread.join(thread.start(matchers(a=a, b=b)))
        assert masks["a"] is one and masks["b"].tolist() == [2, 2] and errors == {}
    assert set(a.threads + b.threads) == {"chairlift-masks"}


def test_nothing_is_started_for_nobody() -> None:
    before = threading.active_count()
    thread = MaskThread()
    assert thread.join(thread.start({})) == ({}, {})
    assert threading.active_count() == before


def test_the_thread_ends_with_its_owner() -> None:
    owner, started = MaskThread(), []

    class Noted(Scripted):
        def compute_mask(self) -> MaskArray:
            started.append(threading.current_thread())
            return super().compute_mask()

    owner.join(owner.start(matchers(a=Noted(np.ones(1, dtype=np.uint32)))))
    assert started[0].is_alive()
    del owner
    gc.collect()
    started[0].join(10)
    assert not started[0].is_alive()


def test_a_fault_is_that_requests_own(caplog: pytest.LogCaptureFixture) -> None:
    thread, mask = MaskThread(), np.ones(1, dtype=np.uint32)
    pending = thread.start(
        matchers(
            a=Scripted(GrammarError("too many items")),
            b=Scripted(KeyError("lost")),
            c=Scripted(mask),
        )
    )
    masks, errors = thread.join(pending)
    assert list(masks) == ["c"]
    assert errors == {
        "a": "structured_outputs: the grammar failed: too many items",
        "b": "structured_outputs: the grammar failed: KeyError: 'lost'",
    }
    assert len(caplog.records) == 1, "what was not foreseen is logged with its trace"


def test_one_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, mask, release = MaskThread(), np.ones(1, dtype=np.uint32), threading.Event()
    pending = thread.start(matchers(a=Scripted(mask), b=Scripted(release), c=Scripted(mask)))
    while "a" not in pending.masks:
        threading.Event().wait(0.001)
    with monkeypatch.context() as patch:
        patch.setattr(grammar_masks, "MAX_WAITS", 1)
        masks, errors = thread.join(pending)
    assert list(masks) == ["a"] and set(errors) == {"b", "c"}
    assert "too long" in errors["b"]
    masks, errors = thread.join(thread.start(matchers(d=Scripted(mask))))
    assert list(masks) == ["d"] and not errors, "the next ones have a thread of their own"
    release.set()
