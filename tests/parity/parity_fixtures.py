"""Reads and writes the committed fixtures: what Hugging Face transformers computed in float32.

Owns the two file layouts.  Needs numpy only; knows neither torch nor how the numbers were made.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIXTURES = Path(__file__).parent / "fixtures"
SMOLLM2_GREEDY = FIXTURES / "smollm2_greedy.json"
TINY_LOGITS = FIXTURES / "tiny_logits.npz"
TINY_EMBEDDINGS = FIXTURES / "tiny_embeddings.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedySample:
    """One prompt and its greedy continuation; the three lists after it are of one length.

    `margins` are best minus second-best logit, `logprobs` the natural log-probability of the
    chosen token.  The end-of-sequence token, if it came, is the last token.
    """

    name: str
    prompt_text: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    margins: list[float]
    logprobs: list[float]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyFixture:
    """`meta` names the versions, the GGUF file's SHA-256 and the settings of the run."""

    meta: dict[str, Any]
    samples: list[GreedySample]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyLogits:
    """Teacher-forced logits of one tiny checkpoint.

    `logits` is [positions, vocab] float32; row r is the model's output after having read
    `token_ids[: positions[r] + 1]`.  `fingerprint` is `tiny_checkpoints.fingerprint` of the
    weights they were computed with.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    logits: NDArray[np.float32]
    fingerprint: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFixture:
    """`meta` names the versions; `variants` has the keys of `tiny_checkpoints.VARIANTS`."""

    meta: dict[str, Any]
    variants: dict[str, TinyLogits]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyEmbeddings:
    """Pooled final hidden states of one tiny checkpoint, not normalised.

    `last` and `mean` are [lengths, hidden] float32; row r is of the first `lengths[r]` tokens that
    the variant's `TinyLogits` has.
    """

    lengths: NDArray[np.int64]
    last: NDArray[np.float32]
    mean: NDArray[np.float32]


def load_greedy(path: Path = SMOLLM2_GREEDY) -> GreedyFixture:
    """Read the default model's greedy samples."""
    content = json.loads(path.read_text(encoding="utf-8"))
    samples = [GreedySample(**sample) for sample in content["samples"]]
    return GreedyFixture(meta=content["meta"], samples=samples)


def save_greedy(fixture: GreedyFixture, path: Path = SMOLLM2_GREEDY) -> None:
    """Write one sample per line, so that a changed sample is one changed line."""
    lines = ",\n".join(_compact(asdict(sample)) for sample in fixture.samples)
    text = f'{{"meta":{_compact(fixture.meta)},\n"samples":[\n{lines}\n]}}\n'
    path.write_text(text, encoding="utf-8")


def load_tiny(path: Path = TINY_LOGITS) -> TinyFixture:
    """Read the logits of all tiny checkpoints."""
    with np.load(path, allow_pickle=False) as arrays:
        meta = json.loads(str(arrays["meta"]))
        names = [key.removesuffix("/logits") for key in arrays.files if key.endswith("/logits")]
        variants = {
            name: TinyLogits(
                token_ids=arrays[f"{name}/token_ids"],
                positions=arrays[f"{name}/positions"],
                logits=arrays[f"{name}/logits"],
                fingerprint=arrays[f"{name}/fingerprint"],
            )
            for name in names
        }
    return TinyFixture(meta=meta, variants=variants)


def save_tiny(fixture: TinyFixture, path: Path = TINY_LOGITS) -> None:
    """Write all tiny checkpoints' logits to one compressed file."""
    arrays: dict[str, Any] = {"meta": np.array(_compact(fixture.meta))}
    for name, variant in fixture.variants.items():
        arrays[f"{name}/token_ids"] = variant.token_ids
        arrays[f"{name}/positions"] = variant.positions
        arrays[f"{name}/logits"] = variant.logits
        arrays[f"{name}/fingerprint"] = variant.fingerprint
    np.savez_compressed(path, **arrays)


def load_embeddings(path: Path = TINY_EMBEDDINGS) -> dict[str, TinyEmbeddings]:
    """Read the pooled hidden states of all tiny checkpoints, by variant."""
    with np.load(path, allow_pickle=False) as arrays:
        names = [key.removesuffix("/last") for key in arrays.files if key.endswith("/last")]
        return {
            name: TinyEmbeddings(
                lengths=arrays[f"{name}/lengths"],
                last=arrays[f"{name}/last"],
                mean=arrays[f"{name}/mean"],
            )
            for name in names
        }


def save_embeddings(
    variants: dict[str, TinyEmbeddings], meta: dict[str, Any], path: Path = TINY_EMBEDDINGS
) -> None:
    """Write the pooled hidden states of all tiny checkpoints to one compressed file."""
    arrays: dict[str, Any] = {"meta": np.array(_compact(meta))}
    for name, variant in variants.items():
        arrays |= {f"{name}/{key}": value for key, value in asdict(variant).items()}
    np.savez_compressed(path, **arrays)


def _compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
