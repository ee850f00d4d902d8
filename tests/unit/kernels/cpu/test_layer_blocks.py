"""All halves of layers of a step in one call: the same bits as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from chairlift.kernels.cpu.int8 import Int8Kernels
from chairlift.kernels.interface import BatchLayout, FloatArray
from unit.kernels.cpu.test_int8 import BLOCK_SIZE, EPS, HIDDEN, Layer, random
from unit.kernels.kernel_cases import make_layout

TABLES = [[0, 1], [2, 3]]


@pytest.fixture
def int8_blocks(isa: str) -> Int8Kernels:
    return Int8Kernels(2)


def two_steps() -> list[BatchLayout]:
    chunks = [[(20, 20), (5, 5)], [(1, 21), (4, 9)]]
    return [make_layout(chunk, TABLES, BLOCK_SIZE) for chunk in chunks]


def run(kernels: Int8Kernels, layers: list[Layer], together: bool) -> list[FloatArray]:
    """Hidden states of two steps over layers with one cache each."""
    caches = [layer.new_cache() for layer in layers]
    results = []
    for number, layout in enumerate(two_steps()):
        x = random(len(layout.positions), HIDDEN, seed=20 + number)

        def forward(x: FloatArray, layout: BatchLayout = layout) -> FloatArray:
            for layer, cache in zip(layers, caches, strict=True):
                x = layer.attend(x, cache, layout)
                x = kernels.mlp_block(x, layer.mlp, EPS)
            return x

        if together:
            with kernels.one_call():
                x = forward(x)
        else:
            x = forward(x)
        results.append(x)
    return results


def test_one_call_gives_the_bits_of_many(int8_blocks: Int8Kernels) -> None:
    layers = [Layer(int8_blocks, qk_norm=index % 2 == 0) for index in range(3)]
    apart, together = run(int8_blocks, layers, False), run(int8_blocks, layers, True)
    for one, other in zip(apart, together, strict=True):
        assert one.any() and np.array_equal(one, other)


def test_results_of_two_steps_are_different_arrays(library: object) -> None:
    kernels = Int8Kernels(1)
    first, second = run(kernels, [Layer(kernels)], True)
    assert not np.shares_memory(first, second)


def test_a_block_must_go_on_where_the_one_before_ended(library: object) -> None:
    kernels = Int8Kernels(1)
    layer, other = Layer(kernels), Layer(kernels)
    x = random(3, HIDDEN, seed=1)
    with pytest.raises(ValueError, match="go on where"), kernels.one_call():
        kernels.mlp_block(x, layer.mlp, EPS)
        kernels.mlp_block(x, other.mlp, EPS)
    assert kernels.mlp_block(x, layer.mlp, EPS).any()  # not put off


def test_a_layer_has_one_turn_in_a_call(library: object) -> None:
    kernels = Int8Kernels(1)
    layer = Layer(kernels)
    with pytest.raises(ValueError, match="one turn"), kernels.one_call():
        x = kernels.mlp_block(random(3, HIDDEN, seed=1), layer.mlp, EPS)
        kernels.mlp_block(x, layer.mlp, EPS)


def test_an_error_inside_drops_what_waits(library: object) -> None:
    kernels = Int8Kernels(1)
    layer = Layer(kernels)
    x = random(3, HIDDEN, seed=1)
    waiting = np.empty(0)
    with pytest.raises(KeyError), kernels.one_call():
        waiting = kernels.mlp_block(x, layer.mlp, EPS)
        waiting[:] = 5.0
        raise KeyError
    assert (waiting == 5.0).all()


def test_the_library_s_error_comes_out_of_the_call(library: object) -> None:
    kernels = Int8Kernels(1)
    layer = Layer(kernels)
    [layout, _] = two_steps()
    layout.slot_mapping[0] = 10**6
    x = random(len(layout.positions), HIDDEN, seed=1)
    with pytest.raises(ValueError, match="slot"), kernels.one_call():
        layer.attend(x, layer.new_cache(), layout)


def test_an_empty_call_does_nothing(library: object) -> None:
    with Int8Kernels(1).one_call():
        pass
