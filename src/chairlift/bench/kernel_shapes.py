"""The shapes of a model's step, and how its file stores each matrix: all that kernels are timed on.

Weights are random: no kernel is faster for some numbers than for others.  Without a file the shapes
are those of the default model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chairlift.kernels.grouped_weights import QUANTISED_FLOATS, GroupForm, stacked_form
from chairlift.models.decoder import STACKS
from chairlift.models.model_config import ModelConfig
from chairlift.models.registry import read_model_config
from chairlift.weights.checkpoint import Checkpoint, open_checkpoint

MatrixName = Literal["qkv", "output", "gate-up", "down", "head"]
MATRICES: tuple[MatrixName, ...] = ("qkv", "output", "gate-up", "down", "head")

DEFAULT_CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    rope_dim=64,
    rope_interleaved=True,
)
"""SmolLM2-135M."""
_Q4_1 = GroupForm(bits=4, group_size=32, has_minimum=True, half_scales=True)
_Q8_0 = GroupForm(bits=8, group_size=32, has_minimum=False, half_scales=True)


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """One matrix of a layer, or the head."""

    name: MatrixName
    out_features: int
    in_features: int
    form: GroupForm
    """That kernels on bytes store it in."""
    count: int
    """How many of them a step goes through."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.out_features} x {self.in_features}"

    @property
    def num_weights(self) -> int:
        return self.out_features * self.in_features


@dataclass(frozen=True, slots=True)
class StepShapes:
    """A model as the kernels see it."""

    model: str
    config: ModelConfig
    matrices: tuple[MatrixShape, ...]

    @property
    def num_weights(self) -> int:
        """Of all matrices that a step goes through."""
        return sum(matrix.num_weights * matrix.count for matrix in self.matrices)

    def matrix(self, name: MatrixName) -> MatrixShape:
        return next(matrix for matrix in self.matrices if matrix.name == name)


def default_shapes() -> StepShapes:
    """Those of SmolLM2-135M in Q4_1, without its file."""
    forms = {name: _Q8_0 if name == "head" else _Q4_1 for name in MATRICES}
    return _shapes("SmolLM2-135M (Q4_1)", DEFAULT_CONFIG, forms)


def read_shapes(path: Path, name: str) -> StepShapes:
    """Those of the model at `path`; reads no weights.  Raises a `ChairliftError`."""
    with open_checkpoint(path) as checkpoint:
        config = read_model_config(checkpoint.kind, checkpoint.metadata)
        return _shapes(name, config, _forms(checkpoint, config))


def _shapes(model: str, config: ModelConfig, forms: dict[MatrixName, GroupForm]) -> StepShapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    sizes: dict[MatrixName, tuple[int, int]] = {
        "qkv": (queries + 2 * keys, hidden),
        "output": (hidden, queries),
        "gate-up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config.vocab_size, hidden),
    }
    return StepShapes(
        model,
        config,
        tuple(
            MatrixShape(name, *sizes[name], forms[name], 1 if name == "head" else config.num_layers)
            for name in MATRICES
        ),
    )


def _forms(checkpoint: Checkpoint, config: ModelConfig) -> dict[MatrixName, GroupForm]:
    """Of each matrix the form that most layers have it in; layers of some files differ."""
    names = set(checkpoint.names())
    has_head = "output.weight" in names and not config.tied_head
    parts: dict[MatrixName, tuple[str, ...]] = {
        "qkv": STACKS[0],
        "output": ("attn_output",),
        "gate-up": STACKS[1],
        "down": ("ffn_down",),
    }
    forms: dict[MatrixName, GroupForm] = {
        "head": _stack_form(checkpoint, ["output" if has_head else "token_embd"])
    }
    for name, stack in parts.items():
        of_layers = Counter(
            _stack_form(checkpoint, [f"blk.{layer}.{part}" for part in stack])
            for layer in range(config.num_layers)
        )
        forms[name] = of_layers.most_common(1)[0][0]
    return forms


def _stack_form(checkpoint: Checkpoint, names: list[str]) -> GroupForm:
    """Floats are quantised by the kernels that multiply bytes."""
    form = stacked_form([checkpoint.group_form(f"{name}.weight") for name in names])
    return form or QUANTISED_FLOATS
