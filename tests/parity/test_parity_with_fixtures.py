"""Our models against what transformers computed in float32: the committed fixtures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.engine.loaded_model import LoadedModel
from chairlift.runner.forward_batch import build_layout
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs
from parity import parity_fixtures
from parity.parity_fixtures import GreedySample, TinyLogits, load_greedy
from parity.tiny_checkpoints import VARIANTS

LOGIT_TOLERANCE = 1e-3
CLOSE_CALL = 1e-3
"""Where the two best logits are closer than this, either may win, and texts part."""


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_teacher_forced_logits_equal_transformers(
    load_tiny: Callable[..., LoadedModel], variant: str, kernels: str
) -> None:
    model, expected = load_tiny(variant, kernels), load_tiny_fixture(variant)
    runner, block_size = model.runner, model.resolved.memory.block_size
    token_ids = np.array(expected.token_ids, dtype=np.int32)
    blocks = list(range(len(token_ids) // block_size + 1))[::-1]
    item = ScheduledRequest("", "prefill", 0, len(token_ids), blocks, False)
    hidden = runner.model.forward(
        token_ids, build_layout([item], block_size), runner.kv_cache.blocks
    )
    logits = runner.model.logits(hidden, np.array(expected.positions, dtype=np.int32))
    assert np.abs(logits - expected.logits).max() < LOGIT_TOLERANCE


def load_tiny_fixture(variant: str) -> TinyLogits:
    return parity_fixtures.load_tiny().variants[variant]


@pytest.mark.real_model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_greedy_tokens_of_the_default_model_equal_transformers(
    load_default_model: Callable[[str], LoadedModel], kernels: str
) -> None:
    samples = load_greedy().samples
    params = SamplingParams(temperature=0.0, max_tokens=64)
    jobs = [Job(prompt=sample.prompt_token_ids, params=params) for sample in samples]
    outputs = run_jobs(make_engine(load_default_model(kernels)), jobs)
    assert len(samples) == 32
    for sample, output in zip(samples, outputs, strict=True):
        got = output.outputs[0].token_ids
        assert got == sample.token_ids or _parts_at_a_close_call(sample, got), sample.name


@pytest.mark.real_model
def test_prompts_are_tokenized_as_the_fixtures_say(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    tokenizer = load_default_model("native").tokenizer
    for sample in load_greedy().samples:
        assert tokenizer.encode(sample.prompt_text) == sample.prompt_token_ids, sample.name


def _parts_at_a_close_call(sample: GreedySample, got: list[int]) -> bool:
    """The first difference stands where the two best logits were nearly equal."""
    pairs = zip(got, sample.token_ids, strict=False)
    first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    return first is not None and sample.margins[first] < CLOSE_CALL
