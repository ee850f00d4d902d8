"""The default model on bytes: close to float32, and as large as planned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.engine.loaded_model import LoadedModel
from chairlift.kernels.interface import FloatArray, Linear
from chairlift.runner.forward_batch import build_layout
from parity.parity_fixtures import load_greedy


def answer_logits(model: LoadedModel, prompt: list[int], answer: list[int]) -> FloatArray:
    """[len(answer), vocab]: what is predicted for each token of an answer that is given."""
    token_ids = np.array(prompt + answer[:-1], np.int32)
    size = model.resolved.memory.block_size
    blocks = range(-(-len(token_ids) // size))
    item = ScheduledRequest("", "prefill", 0, len(token_ids), blocks, False)
    decoder, cache = model.runner.model, model.runner.kv_cache
    hidden = decoder.forward(token_ids, build_layout([item], size), cache.blocks)
    return decoder.logits(hidden, np.arange(len(prompt) - 1, len(token_ids), dtype=np.int32))


@pytest.mark.real_model
@pytest.mark.timeout(300)
def test_the_best_token_is_that_of_float32_nearly_always(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    """Along transformers' greedy answers to the parity prompts, token by token."""
    native, int8 = load_default_model("native"), load_default_model("int8")
    agreeing, errors = [], []
    for sample in load_greedy().samples:
        wanted = answer_logits(native, sample.prompt_token_ids, sample.token_ids)
        got = answer_logits(int8, sample.prompt_token_ids, sample.token_ids)
        agreeing += (wanted.argmax(axis=1) == got.argmax(axis=1)).tolist()
        errors += (np.abs(got - wanted).mean(axis=1) / wanted.std(axis=1)).tolist()
    assert len(agreeing) > 1000
    assert np.mean(agreeing) >= 0.95
    assert np.mean(errors) < 0.1


@pytest.mark.real_model
def test_memory_is_what_was_planned(load_default_model: Callable[[str], LoadedModel]) -> None:
    model = load_default_model("int8")
    decoder, memory = model.runner.model, model.resolved.memory
    linears: list[Linear] = [decoder.head]
    for layer in decoder.layers:
        linears += [layer.attention.qkv, layer.attention.output]
        linears += [layer.mlp.gate_up, layer.mlp.down]
    held = sum(linear.num_bytes for linear in linears)
    assert decoder.embedding is decoder.head, "a tied table is there once"
    assert memory.weights_bytes == pytest.approx(held, rel=0.005)
    assert memory.weights_bytes < 100e6
    # 30 layers, 3 heads of 64 bytes and a float scale, keys and values
    assert memory.block_bytes == model.runner.kv_cache.block_bytes == 30 * 2 * 3 * 16 * (64 + 4)
