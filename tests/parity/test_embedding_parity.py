"""Our vectors against hidden states that transformers computed in float32: committed fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.pooling_params import PoolingParams
from engines import Job, make_engine, run_jobs
from parity.parity_fixtures import load_embeddings, load_tiny
from parity.tiny_checkpoints import VARIANTS

STATE_TOLERANCE = 1e-3
"""Final hidden states are of the size of 1."""
MAX_ANGLE = 0.03
"""1 - cosine, between vectors on bytes and in float32."""
KINDS: tuple[Any, ...] = ("last", "mean")


def vectors(
    model: LoadedModel, variant: str, *, normalize: bool
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Of the first so many tokens, for each kind of pooling, all in one batch."""
    token_ids = load_tiny().variants[variant].token_ids.tolist()
    lengths = load_embeddings()[variant].lengths.tolist()
    jobs = [
        Job(
            prompt=token_ids[:length],
            pooling=PoolingParams(pooling_type=kind, normalize=normalize),
        )
        for kind in KINDS
        for length in lengths
    ]
    found = [
        np.frombuffer(output.embedding, np.float32)  # type: ignore[arg-type]
        for output in run_jobs(make_engine(model), jobs)
    ]
    return {"last": found[: len(lengths)], "mean": found[len(lengths) :]}


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pooled_states_equal_transformers(
    load_tiny: Callable[..., LoadedModel], variant: str, kernels: str
) -> None:
    expected = load_embeddings()[variant]
    found = vectors(load_tiny(variant, kernels), variant, normalize=False)
    for kind in KINDS:
        worst = np.abs(np.stack(found[kind]) - getattr(expected, kind)).max()
        assert worst < STATE_TOLERANCE, kind


@pytest.mark.parametrize("variant", VARIANTS)
def test_normalised_vectors_point_where_those_of_transformers_do(
    load_tiny: Callable[..., LoadedModel], variant: str
) -> None:
    """On bytes as well, within what bytes can tell."""
    expected = load_embeddings()[variant]
    found = vectors(load_tiny(variant, "int8"), variant, normalize=True)
    for kind in KINDS:
        theirs = getattr(expected, kind).astype(np.float64)
        theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
        cosines = (np.stack(found[kind]) * theirs).sum(axis=1)
        assert cosines.min() > 1 - MAX_ANGLE, (kind, cosines)
