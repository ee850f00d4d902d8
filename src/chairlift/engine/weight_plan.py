"""What a model's weights will take in memory, and what they are kept as, before they are loaded."""

from __future__ import annotations

import math
from collections.abc import Collection

from chairlift.kernels.grouped_weights import stacked_form
from chairlift.kernels.interface import Kernels, MatrixForm
from chairlift.kernels.stored_floats import common_short_form
from chairlift.models.decoder import STACKS
from chairlift.models.model_config import ModelConfig
from chairlift.weights.checkpoint import Checkpoint

_TABLE, _HEAD = "token_embd.weight", "output.weight"


def weights_by_kind(
    checkpoint: Checkpoint, config: ModelConfig, kernels: Kernels
) -> dict[str, int]:
    """Bytes of the weights by what these kernels keep them as, most bytes first."""
    names = set(checkpoint.names())
    is_tied = config.tied_head or _HEAD not in names
    if is_tied:
        names.discard(_HEAD)  # a second copy, which is ignored
    stacks = _stacks_of(names)
    if is_tied and _TABLE in names and not kernels.shares_table:
        stacks.append([_TABLE])
    kinds: dict[str, int] = {}
    for stack in stacks:
        kind, num_bytes = _plan_stack(checkpoint, stack, kernels)
        kinds[kind] = kinds.get(kind, 0) + num_bytes
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def head_preparing_bytes(checkpoint: Checkpoint, config: ModelConfig, kernels: Kernels) -> int:
    """What is there while the output head, the first matrix of all, is prepared."""
    names = checkpoint.names()
    head = _HEAD if _HEAD in names and not config.tied_head else _TABLE
    form = _stacked_form(checkpoint, [head]) if head in names else None
    return kernels.preparing_bytes(config.vocab_size, config.hidden_size, form, in_layer=False)


def _stacks_of(names: Collection[str]) -> list[list[str]]:
    """Names of tensors, those together that are packed as one."""
    key_of = {part: parts for parts in STACKS for part in parts}
    stacks: dict[object, list[str]] = {}
    for name in names:
        layer, _, part = name.removesuffix(".weight").rpartition(".")
        key = (layer, key_of[part]) if name.endswith(".weight") and part in key_of else name
        stacks.setdefault(key, []).append(name)
    return list(stacks.values())


def _plan_stack(checkpoint: Checkpoint, names: list[str], kernels: Kernels) -> tuple[str, int]:
    """What it is kept as, and its bytes."""
    shapes = [checkpoint.shape(name) for name in names]
    if any(len(shape) != 2 for shape in shapes):
        return "float32", 4 * sum(math.prod(shape) for shape in shapes)
    form, in_layer = _stacked_form(checkpoint, names), names[0].startswith("blk.")
    rows, columns = sum(rows for rows, _ in shapes), shapes[0][1]
    num_bytes = kernels.matrix_bytes(rows, columns, form, in_layer=in_layer)
    return kernels.matrix_kind(form, in_layer=in_layer), num_bytes


def _stacked_form(checkpoint: Checkpoint, names: list[str]) -> MatrixForm:
    """What these matrices are below each other."""
    grouped = stacked_form([checkpoint.group_form(name) for name in names])
    return grouped or common_short_form([checkpoint.short_form(name) for name in names])
