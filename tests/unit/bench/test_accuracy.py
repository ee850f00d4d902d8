"""The accuracy gate: its sums by hand, against the engine's own scores, and what makes it fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chairlift.bench.accuracy import (
    AccuracyReport,
    AccuracyTally,
    check_modes,
    cut_windows,
    measure_accuracy,
    read_text,
    token_losses,
)
from chairlift.bench.kernel_mode import (
    FAST_BOUNDS,
    FLOAT32_BOUNDS,
    QUANTIZED_BOUNDS,
    KernelMode,
    modes_of,
)
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import ConfigError
from chairlift.runner.model_runner import ModelRunner
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

INT8, NATIVE = KernelMode(kernels="int8"), KernelMode(kernels="native")
TEXT = "It was a dark and stormy night; the rain fell in torrents, and the lamps went out. " * 8
"""664 tokens of a byte-level vocabulary: two windows of the tiny models' 256, and a rest."""


def test_losses_are_negative_log_softmax_and_do_not_overflow() -> None:
    probabilities = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    for offset in (0.0, 5000.0, -5000.0):
        logits = (np.log(probabilities) + offset).astype(np.float32)
        losses = token_losses(logits, [1, 2])
        assert losses == pytest.approx([math.log(4), -math.log(0.7)], abs=1e-3 if offset else 1e-6)


def test_tally_by_hand() -> None:
    tested = np.log(np.array([[0.5, 0.5 - 1e-9], [0.25, 0.75]])).astype(np.float32)
    against = np.log(np.array([[0.8, 0.2], [0.6, 0.4]])).astype(np.float32)
    tally = AccuracyTally()
    tally.add(tested[:1], against[:1], np.array([0], dtype=np.int32))
    tally.add(tested[1:], against[1:], np.array([1], dtype=np.int32))
    assert tally.num_predictions == 2
    assert tally.agreement == 0.5
    assert tally.perplexity == pytest.approx((0.5 * 0.75) ** -0.5)
    assert tally.against_perplexity == pytest.approx((0.8 * 0.4) ** -0.5)
    assert tally.perplexity_change == pytest.approx(tally.perplexity / tally.against_perplexity - 1)
    differences = np.log([0.8 / 0.5, 0.4 / 0.75])
    assert tally.perplexity_change_error == pytest.approx(differences.std() / math.sqrt(2))


@pytest.mark.parametrize(
    ("change", "num_agreed", "passed"),
    [
        (0.00499, 950, True),
        (-0.05, 1000, True),
        (0.00501, 1000, False),
        (0.0, 949, False),
        (math.nan, 1000, False),
    ],
)
def test_both_bounds_must_hold(change: float, num_agreed: int, passed: bool) -> None:
    loss = 3000.0 + 1000 * math.log1p(change)
    tally = AccuracyTally(
        num_predictions=1000, num_agreed=num_agreed, loss=loss, against_loss=3000.0
    )
    result = report(tally)
    assert result.passed is passed
    assert result.text().endswith("int8 KV: passed" if passed else "int8 KV: FAILED")
    assert result.to_json()["passed"] is passed


def report(tally: AccuracyTally) -> AccuracyReport:
    return AccuracyReport(
        model="m",
        mode=INT8,
        against=NATIVE,
        num_windows=2,
        window_tokens=501,
        bounds=INT8.bounds,
        tally=tally,
    )


def test_float32_modes_have_tight_bounds() -> None:
    assert KernelMode(kernels="reference").bounds == NATIVE.bounds == FLOAT32_BOUNDS
    assert KernelMode(kernels="native", kv_cache_dtype="fp32").bounds == FLOAT32_BOUNDS
    assert KernelMode(kernels="native", kv_cache_dtype="fp16").bounds == QUANTIZED_BOUNDS
    assert INT8.bounds == QUANTIZED_BOUNDS
    assert KernelMode(kernels="int8", kv_cache_dtype="fp32").bounds == QUANTIZED_BOUNDS


def test_fast_compute_has_bounds_of_its_own() -> None:
    fast = KernelMode(kernels="int8", quant_compute="fast", kv_cache_dtype="bf16")
    assert fast.bounds == FAST_BOUNDS
    assert str(fast) == "int8 fast, bfloat16 KV"


def test_every_mode_but_float32() -> None:
    assert [str(mode) for mode in modes_of("native")] == [
        "native, float16 KV",
        "native, bfloat16 KV",
    ]
    names = [str(mode) for mode in modes_of("int8")]
    assert len(names) == len(set(names)) == 8
    assert {"int8 exact, int8 KV", "int8 fast, float32 KV"} <= set(names)


def test_a_mode_says_what_its_cache_stores() -> None:
    assert str(INT8) == "int8 exact, int8 KV"
    assert str(KernelMode(kernels="native", kv_cache_dtype="bf16")) == "native, bfloat16 KV"


@pytest.mark.parametrize("add_bos", [False, True])
def test_windows_are_whole_and_begin_as_the_models_texts_do(add_bos: bool) -> None:
    def encode(text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    tokenizer = SimpleNamespace(add_bos=add_bos, bos_id=1, encode=encode)
    windows = cut_windows("abcdefgh", tokenizer, 3)  # type: ignore[arg-type]
    texts = ["".join(chr(token_id) for token_id in window) for window in windows]
    expected = ["\1ab", "\1cd", "\1ef", "\1gh"] if add_bos else ["abc", "def"]
    assert texts == expected
    assert all(window.dtype == np.int32 for window in windows)


def test_float32_kernels_agree_and_progress_is_told(load_tiny: Callable[..., LoadedModel]) -> None:
    lines: list[str] = []
    result = measure(load_tiny(kernels="reference"), load_tiny(), progress=lines.append)
    assert result.passed and result.tally.agreement == 1.0
    assert (result.num_windows, result.window_tokens) == (2, 256)
    assert result.tally.num_predictions == 2 * 255
    assert result.tally.perplexity == pytest.approx(result.tally.against_perplexity, rel=1e-5)
    assert [line.split(":")[0] for line in lines] == ["window 1/2", "window 2/2"]


def test_perplexity_is_what_the_engine_says(load_tiny: Callable[..., LoadedModel]) -> None:
    model = with_context(load_tiny(), 255)  # a request needs room for one more token
    prompt = cut_windows(TEXT, model.tokenizer, 255)[0].tolist()
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (output,) = run_jobs(make_engine(load_tiny()), [Job(prompt=prompt, params=params)])
    assert output.prompt_logprobs is not None
    scores = [
        entry[token_id].logprob
        for entry, token_id in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        if entry is not None
    ]
    assert len(scores) == 254
    result = measure(load_tiny(kernels="reference"), model, num_windows=1)
    assert result.tally.num_predictions == 254
    expected = math.exp(-sum(scores) / 254)
    assert result.tally.against_perplexity == pytest.approx(expected, rel=1e-5)
    assert result.tally.perplexity == pytest.approx(expected, rel=1e-4)


def with_context(model: LoadedModel, max_model_len: int) -> LoadedModel:
    memory = dataclasses.replace(model.resolved.memory, max_model_len=max_model_len)
    return dataclasses.replace(model, resolved=dataclasses.replace(model.resolved, memory=memory))


def test_a_damaged_mode_fails(load_tiny: Callable[..., LoadedModel]) -> None:
    model = load_tiny()
    decoder = dataclasses.replace(
        model.runner.model, output_norm=model.runner.model.output_norm * np.float32(1.2)
    )
    runner = ModelRunner(decoder, model.runner.kv_cache, model.resolved.memory.block_size)
    result = measure(dataclasses.replace(model, runner=runner), model)
    assert result.tally.agreement == 1.0, "a larger gain leaves the order"
    assert not result.passed and result.tally.perplexity_change > 0.003


def measure(tested: LoadedModel, against: LoadedModel, **options: object) -> AccuracyReport:
    return measure_accuracy(tested, against, TEXT, mode=INT8, against_mode=NATIVE, **options)


def test_a_text_of_less_than_a_window_is_an_error(load_tiny: Callable[..., LoadedModel]) -> None:
    model = load_tiny()
    with pytest.raises(ConfigError, match="needs 256 tokens"):
        measure_accuracy(model, model, "short", mode=INT8, against_mode=NATIVE)


@pytest.mark.parametrize(
    ("kernels", "against", "message"),
    [
        ("native", "native", "choose different ones"),
        ("auto", "native", "must name the mode"),
        ("native", "int8", "against must be one of native, reference"),
    ],
)
def test_pairs_that_say_nothing(kernels: Any, against: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_modes(KernelMode(kernels=kernels), KernelMode(kernels=against))


def test_another_cache_makes_another_mode() -> None:
    check_modes(KernelMode(kernels="native", kv_cache_dtype="fp16"), NATIVE)


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xe9")
    for path, message in ((tmp_path / "none", "No such file"), (latin, "not UTF-8")):
        with pytest.raises(ConfigError, match=f"{message}.*--text"):
            read_text(path)
