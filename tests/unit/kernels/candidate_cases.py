"""Queries, heads and hidden states of the tests about candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chairlift.kernels.candidates import ROW_QUERY, CandidateQuery, Candidates
from chairlift.kernels.interface import FloatArray, IntArray, Kernels, Linear

HIDDEN = 32
EPS = 1e-5


class Head:
    """A random output head whose bias may be anything: adversarial logits come from there."""

    def __init__(
        self, kernels: Kernels, vocab_size: int, *, spread: float = 3.0, bias: Any = None
    ) -> None:
        rng = np.random.default_rng(vocab_size)
        matrix = rng.standard_normal((vocab_size, HIDDEN), np.float32)
        matrix *= np.float32(spread / math.sqrt(HIDDEN))
        self.kernels, self.vocab_size = kernels, vocab_size
        self.norm = np.ones(HIDDEN, np.float32)
        array = None if bias is None else np.asarray(bias, np.float32)
        self.linear: Linear = kernels.prepare_linear([matrix], [array])

    def logits(self, x: FloatArray, rows: IntArray) -> FloatArray:
        return self.kernels.logits(x, self.norm, EPS, self.linear, rows)

    def candidates(self, x: FloatArray, rows: IntArray, query: CandidateQuery) -> Candidates:
        return self.kernels.candidates(x, self.norm, EPS, self.linear, rows, query)


def hidden_states(count: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((count, HIDDEN), np.float32)


def all_rows(x: FloatArray) -> IntArray:
    return np.arange(len(x), dtype=np.int32)


@dataclass(frozen=True)
class Edits:
    """For each row: what is added by token, and how often a token to be penalised occurred."""

    added: Sequence[dict[int, float]]
    counts: Sequence[dict[int, int]]
    penalties: tuple[float, float, float] = (1.3, 0.25, 0.5)


def make_query(
    temperatures: Sequence[float],
    *,
    seed: int = 0,
    list_size: int = 0,
    depth: float = math.inf,
    weights: bool = False,
    edits: Edits | None = None,
) -> CandidateQuery:
    """Greedy rows have no list and no weights."""
    rows = np.zeros(len(temperatures), ROW_QUERY)
    rows["temperature"] = temperatures
    is_random = rows["temperature"] > 0
    rows["key"] = np.random.default_rng(seed).integers(0, 2**64, len(rows), np.uint64)
    rows["list_size"] = np.where(is_random, list_size, 0)
    rows["depth"] = depth
    rows["wants_weight"] = is_random & weights
    rows["repetition_penalty"] = 1.0
    items: list[tuple[int, float]] = []
    for index, asked in enumerate(rows if edits else ()):
        assert edits is not None
        asked["first_edit"] = len(items)
        items += edits.added[index].items()
        asked["first_penalty"] = len(items)
        items += edits.counts[index].items()
        asked["last_edit"] = len(items)
        asked["repetition_penalty"] = edits.penalties[0]
        asked["frequency_penalty"] = edits.penalties[1]
        asked["presence_penalty"] = edits.penalties[2]
    return CandidateQuery(
        rows=rows,
        edit_ids=np.array([token for token, _ in items], np.int32),
        edit_values=np.array([value for _, value in items], np.float32),
        max_listed=list_size,
    )
