"""The coarse ops are the paper's equations over the fine ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.kernels.interface import AttentionWeights, FloatArray, Kernels, MlpWeights
from unit.kernels.kernel_cases import exact_attention, make_layout, make_spec, relative_error

EPS = 1e-5


def random(*shape: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def exact_norm(x: NDArray[np.float64], weight: FloatArray) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight
    return normed


def exact_rope(x: NDArray[np.float64], inv_freq: list[float]) -> NDArray[np.float64]:
    half = len(inv_freq)
    angle = np.arange(len(x))[:, None, None] * np.array(inv_freq)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
    )


@pytest.mark.parametrize("qk_norm", [True, False])
def test_attention_block(kernels: Kernels, qk_norm: bool) -> None:
    spec, hidden, tokens = make_spec(6, 2, 8), 24, 11
    inv_freq = [1.0, 0.3, 0.1, 0.03]
    q, k, v, o = (
        random(rows, columns, seed=seed)
        for seed, (rows, columns) in enumerate([(48, 24), (16, 24), (16, 24), (24, 48)])
    )
    norm, q_norm, k_norm = random(24, seed=4), random(8, seed=5), random(8, seed=6)
    q_bias, x = random(48, seed=7), random(tokens, hidden, seed=8)
    block = kernels.kv_block(2, 2, 8, 4)
    cache = np.full((5, *block.shape), np.nan, block.dtype)
    result = kernels.attention_block(
        x,
        AttentionWeights(
            norm=norm,
            qkv=kernels.prepare_linear([q, k, v], [q_bias, None, None]),
            output=kernels.prepare_linear([o], [None]),
            q_norm=q_norm if qk_norm else None,
            k_norm=k_norm if qk_norm else None,
        ),
        spec,
        kernels.rope_table(inv_freq, max_position=16, scaling=1.0),
        cache,
        1,
        make_layout([(tokens, tokens)], [[3, 0, 4]], 4),
    )

    wide = x.astype(np.float64)
    normed = exact_norm(wide, norm)
    queries = (normed @ q.T + q_bias).reshape(tokens, 6, 8)
    keys, values = ((normed @ matrix.T).reshape(tokens, 2, 8) for matrix in (k, v))
    if qk_norm:
        queries, keys = exact_norm(queries, q_norm), exact_norm(keys, k_norm)
    queries, keys = exact_rope(queries, inv_freq), exact_rope(keys, inv_freq)
    attended = exact_attention(spec, queries, keys, values).reshape(tokens, 48)
    assert relative_error(result, wide + attended @ o.T) < 5e-6
    if kernels.name == "reference":  # others cut a block as they like
        np.testing.assert_allclose(cache[3, 1, 0], keys[:4], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(cache[3, 1, 1], values[:4], rtol=1e-4, atol=1e-5)
    assert np.isnan(cache[:, 0]).all(), "another layer was written"


def test_mlp_block(kernels: Kernels) -> None:
    gate, up, down = random(40, 24, seed=0), random(40, 24, seed=1), random(24, 40, seed=2)
    norm, x = random(24, seed=3), random(5, 24, seed=4)
    weights = MlpWeights(
        norm=norm,
        gate_up=kernels.prepare_linear([gate, up], [None, None]),
        down=kernels.prepare_linear([down], [None]),
    )
    wide = x.astype(np.float64)
    normed = exact_norm(wide, norm)
    g = normed @ gate.T
    exact = wide + (g / (1 + np.exp(-g)) * (normed @ up.T)) @ down.T
    assert relative_error(kernels.mlp_block(x, weights, EPS), exact) < 5e-6


def test_embed_and_logits_of_chosen_rows(kernels: Kernels) -> None:
    table, norm = random(30, 16, seed=0), random(16, seed=1)
    ids = np.array([7, 29, 7, 0], np.int32)
    x = kernels.embed(kernels.prepare_table(table, None), ids)
    np.testing.assert_array_equal(x, table[[7, 29, 7, 0]])

    head = kernels.prepare_linear([table], [None])
    rows = np.array([3, 1], np.int32)
    result = kernels.logits(x, norm, EPS, head, rows)
    exact = exact_norm(table[[0, 29]].astype(np.float64), norm) @ table.T
    assert result.shape == (2, 30)
    assert relative_error(result, exact) < 5e-6
