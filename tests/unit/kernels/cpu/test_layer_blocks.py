"""All halves of layers of a step in one call: the same bits as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from chairlift.kernels.cpu.int8 import Int8Kernels
from chairlift.kernels.interface import BatchLayout, FloatArray, KvArray
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


class Owner:
    """Asks for all of its layers, once more or one by one."""

    def __init__(self, kernels: Int8Kernels) -> None:
        self.kernels = kernels
        self.layers = [Layer(kernels, qk_norm=index == 1) for index in range(2)]
        self.layers[1].rope = self.layers[0].rope
        self.cache = self.layers[0].new_cache()
        self.num_asked = 0

    def forward(
        self, x: FloatArray, layout: BatchLayout, cache: KvArray | None = None
    ) -> FloatArray:
        cache = self.cache if cache is None else cache
        with self.kernels.one_call(self) as repeat:
            again = repeat(x, self.layers[0].rope, cache, layout)
            if again is not None:
                return again
            self.num_asked += 1
            for layer in self.layers:
                x = layer.attend(x, cache, layout)
                x = self.kernels.mlp_block(x, layer.mlp, EPS)
        return x


def decodes(*lengths: int) -> BatchLayout:
    return make_layout([(1, length) for length in lengths], TABLES, BLOCK_SIZE)


def test_a_call_repeated_gives_the_bits_of_one_asked_anew(int8_blocks: Int8Kernels) -> None:
    kept, anew = Owner(int8_blocks), Owner(int8_blocks)
    anew.layers = kept.layers
    results = []
    for step in range(4):
        x = random(2, HIDDEN, seed=30 + step)
        layout = decodes(3 + step, 9 + step)
        result = kept.forward(x, layout)
        results.append((result, result.copy()))
    assert kept.num_asked == 1
    for step, (result, then) in enumerate(results):
        x = random(2, HIDDEN, seed=30 + step)
        anew.kernels.mlp_block(x, anew.layers[0].mlp, EPS)  # what was kept is no longer so
        expected = anew.forward(x, decodes(3 + step, 9 + step))
        assert np.array_equal(then, expected) and then.any()
        assert np.array_equal(result, then), "a later step wrote into an earlier one's result"
    assert anew.num_asked == 4
    assert np.array_equal(kept.cache, anew.cache)


def test_another_number_of_rows_another_cache_or_owner_is_asked_anew(library: object) -> None:
    kernels = Int8Kernels(1)
    owner, other = Owner(kernels), Owner(kernels)
    x = random(2, HIDDEN, seed=1)
    owner.forward(x, decodes(3, 4))
    owner.forward(x, decodes(3, 4))
    assert owner.num_asked == 1
    owner.forward(random(1, HIDDEN, seed=2), make_layout([(1, 3)], TABLES[:1], BLOCK_SIZE))
    owner.forward(x, decodes(3, 4))
    owner.forward(x, decodes(3, 4), owner.layers[0].new_cache())
    assert owner.num_asked == 4
    other.forward(x, decodes(3, 4))
    owner.forward(x, decodes(3, 4))
    assert other.num_asked == 1 and owner.num_asked == 5


def test_a_repeated_call_refuses_a_batch_that_does_not_fit(library: object) -> None:
    owner = Owner(Int8Kernels(1))
    x = random(2, HIDDEN, seed=1)
    expected = owner.forward(x, decodes(3, 4)).copy()
    broken = decodes(3, 4)
    broken.slot_mapping[0] = 10**6
    with pytest.raises(ValueError, match="slot"):
        owner.forward(x, broken)
    with pytest.raises(ValueError, match="x must be dense"):
        owner.forward(x[:, ::-1], decodes(3, 4))
    assert np.array_equal(owner.forward(x, decodes(3, 4)), expected)
