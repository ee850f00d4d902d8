"""The backend on bytes against its oracles in numpy, and row for row against itself."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.errors import ConfigError
from chairlift.kernels import reference_int8, reference_kv_int8
from chairlift.kernels.composition import split_heads
from chairlift.kernels.cpu.int8 import Int8Kernels, stack_grouped
from chairlift.kernels.grouped_weights import (
    QUANTISED_FLOATS,
    GroupedWeights,
    GroupForm,
    quantise_matrix,
    stacked_form,
)
from chairlift.kernels.interface import (
    AttentionWeights,
    BatchLayout,
    FloatArray,
    IntArray,
    Kernels,
    KvArray,
    Matrix,
    MlpWeights,
    QuantCompute,
)
from chairlift.kernels.kv_dtype import KvDtype
from chairlift.kernels.reference import ReferenceKernels
from unit.kernels.kernel_cases import Chunk, make_layout, make_spec, relative_error

EPS = 1e-5
BLOCK_SIZE = 16
HIDDEN, INNER = 80, 48
TOLERANCE = 2e-3
"""Where a float lies on the border between two codes, its last bit decides between them."""


def random(*shape: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def norm_of(x: FloatArray, weight: FloatArray) -> FloatArray:
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS) * weight
    return normed.astype(np.float32)


def rows(count: int) -> IntArray:
    return np.arange(count, dtype=np.int32)


@pytest.fixture
def int8(isa: str) -> Int8Kernels:
    """The backend on two threads, at each instruction set."""
    return Int8Kernels(2)


KV_DTYPES: tuple[KvDtype, ...] = ("int8", "float16", "bfloat16", "float32")
MODES: list[tuple[KvDtype, QuantCompute]] = [
    *((kv_dtype, "exact") for kv_dtype in KV_DTYPES),
    ("int8", "fast"),
    ("float16", "fast"),
]


@pytest.fixture(params=MODES, ids="-".join)
def any_int8(isa: str, request: pytest.FixtureRequest) -> Int8Kernels:
    """The same with each type of cache, exact and fast."""
    return Int8Kernels(2, *request.param)


class Layer:
    """A layer's weights as a file has them, and prepared; queries of 6 heads over 2, of 32."""

    def __init__(
        self,
        kernels: Int8Kernels,
        *,
        qk_norm: bool = True,
        dim: int = 32,
        hidden: int = HIDDEN,
        inner: int = INNER,
    ) -> None:
        self.kernels, self.spec = kernels, make_spec(6, 2, dim)
        sizes = [(6 * dim, hidden), (2 * dim, hidden), (2 * dim, hidden)]
        self.qkv = [quantise_matrix(random(*size, seed=i)) for i, size in enumerate(sizes)]
        self.bias = random(6 * dim, seed=3)
        self.output = quantise_matrix(random(hidden, 6 * dim, seed=4))
        self.gate_up = [quantise_matrix(random(inner, hidden, seed=seed)) for seed in (5, 6)]
        self.gate_bias = random(inner, seed=7)
        self.down = quantise_matrix(random(hidden, inner, seed=8))
        self.norm = random(hidden, seed=9)
        self.q_norm = random(dim, seed=10) if qk_norm else None
        self.k_norm = random(dim, seed=11) if qk_norm else None
        self.attention = AttentionWeights(
            norm=self.norm,
            qkv=kernels.prepare_linear(self.qkv, [self.bias, None, None]),
            output=kernels.prepare_linear([self.output], [None]),
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )
        self.mlp = MlpWeights(
            norm=self.norm,
            gate_up=kernels.prepare_gate_up(self.gate_up, [self.gate_bias, None]),
            down=kernels.prepare_linear([self.down], [None]),
        )
        inv_freq = [0.5**i for i in range(dim // 2)]
        self.rope = kernels.rope_table(inv_freq, max_position=128, scaling=1.0)

    def new_cache(self, num_blocks: int = 12, kernels: Kernels | None = None) -> KvArray:
        block = (kernels or self.kernels).kv_block(2, 2, self.spec.head_dim, BLOCK_SIZE)
        return np.zeros((num_blocks, *block.shape), block.dtype)

    def new_oracle_cache(self) -> KvArray:
        """As the oracles cut it: floats in another way than the library."""
        kv_dtype = self.kernels.kv_dtype
        is_bytes = kv_dtype == "int8"
        return self.new_cache(kernels=None if is_bytes else ReferenceKernels(1, kv_dtype))

    def attend(self, x: FloatArray, cache: KvArray, layout: BatchLayout) -> FloatArray:
        return self.kernels.attention_block(
            x, self.attention, self.spec, self.rope, cache, 1, layout
        )

    def expected_attention(self, x: FloatArray, cache: KvArray, layout: BatchLayout) -> FloatArray:
        """x + the oracles one after the other, over a cache of their own."""
        matrix, bias = stack_grouped(self.qkv, [self.bias, None, None])
        joint = self._linear(norm_of(x, self.norm), matrix, bias).astype(np.float32)
        if self.kernels.kv_dtype == "int8":
            attended = self._attend_bytes(joint, cache, layout)
        else:
            attended = self._attend_floats(joint, cache, layout)
        result = self._linear(attended.reshape(len(x), -1), self.output, residual=x)
        return result.astype(np.float32)

    def expected_mlp(self, x: FloatArray) -> FloatArray:
        matrix, bias = stack_grouped(self.gate_up, [self.gate_bias, None])
        joint = self._linear(norm_of(x, self.norm), matrix, bias)
        gate, up = np.split(joint, 2, axis=1)
        gated = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
        return self._linear(gated, self.down, residual=x).astype(np.float32)

    def _linear(
        self,
        x: FloatArray,
        matrix: GroupedWeights,
        bias: FloatArray | None = None,
        residual: FloatArray | None = None,
    ) -> NDArray[np.float64]:
        if self.kernels.quant_compute == "exact":
            return reference_int8.linear_q8(x, matrix, bias, residual)
        matrix = reference_int8.requantise_per_channel(matrix)
        group_size = 32 if x.shape[1] % 64 else 64
        return reference_int8.linear_q8(x, matrix, bias, residual, group_size)

    def _attend_bytes(self, joint: FloatArray, cache: KvArray, layout: BatchLayout) -> FloatArray:
        at, norms = (1, layout, self.spec, BLOCK_SIZE), (self.q_norm, self.k_norm)
        codes, scales = reference_kv_int8.store_qkv(joint, self.rope, cache, *at, *norms)
        return reference_kv_int8.paged_attention(codes, scales, cache, *at)

    def _attend_floats(self, joint: FloatArray, cache: KvArray, layout: BatchLayout) -> FloatArray:
        reference, spec = ReferenceKernels(1), self.spec
        query, key, value = split_heads(joint, spec)
        if self.q_norm is not None and self.k_norm is not None:
            query = reference.rms_norm(query, self.q_norm, EPS)
            key = reference.rms_norm(key, self.k_norm, EPS)
        query = reference.rope(query, self.rope, layout.positions, interleaved=False)
        key = reference.rope(key, self.rope, layout.positions, interleaved=False)
        reference.store_kv(key, value, cache, 1, layout.slot_mapping)
        return reference.paged_attention(query, cache, 1, layout, spec)


@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("dim", [16, 32])
def test_attention_block_is_the_oracles_one_after_the_other(
    any_int8: Int8Kernels, qk_norm: bool, dim: int
) -> None:
    layer = Layer(any_int8, qk_norm=qk_norm, dim=dim)
    cache, own = layer.new_cache(), layer.new_oracle_cache()
    tables = [[3, 0, 7], [5, 1]]
    steps: list[list[Chunk]] = [[(30, 30), (9, 9)], [(1, 31), (12, 21)]]
    for seed, chunks in enumerate(steps):
        layout = make_layout(chunks, tables, BLOCK_SIZE)
        x = random(len(layout.positions), HIDDEN, seed=20 + seed)
        before = x.copy()
        result = layer.attend(x, cache, layout)
        expected = layer.expected_attention(x, own, layout)
        np.testing.assert_array_equal(x, before)
        assert relative_error(result, expected) < TOLERANCE
    assert not cache[:, 0].any(), "the other layer's keys and values were touched"
    assert not cache[[2, 4, 6, 8, 9, 10, 11]].any(), "blocks of nobody were touched"


@pytest.mark.parametrize("compute", ["exact", "fast"])
@pytest.mark.parametrize(("hidden", "inner"), [(80, 48), (128, 64), (64, 192), (192, 80)])
def test_mlp_block_is_the_oracles_one_after_the_other(
    isa: str, compute: QuantCompute, hidden: int, inner: int
) -> None:
    """Rows that whole groups of 64 fill, and others."""
    layer = Layer(Int8Kernels(2, quant_compute=compute), hidden=hidden, inner=inner)
    x = random(37, hidden, seed=1)
    result = layer.kernels.mlp_block(x, layer.mlp, EPS)
    assert relative_error(result, layer.expected_mlp(x)) < TOLERANCE


def test_attention_block_on_whole_groups_of_activations(isa: str) -> None:
    layer = Layer(Int8Kernels(2, "float32", "fast"), hidden=128)
    layout = make_layout([(30, 30)], [[3, 0]], BLOCK_SIZE)
    x = random(30, 128, seed=1)
    result = layer.attend(x, layer.new_cache(), layout)
    expected = layer.expected_attention(x, layer.new_oracle_cache(), layout)
    assert relative_error(result, expected) < TOLERANCE


def test_fast_compute_leaves_head_and_table_as_they_are(isa: str) -> None:
    table = quantise_matrix(random(99, 128, seed=1))
    exact, fast = Int8Kernels(1), Int8Kernels(1, quant_compute="fast")
    heads = [kernels.prepare_head(table, None) for kernels in (exact, fast)]
    np.testing.assert_array_equal(heads[0].packed, heads[1].packed)
    assert fast.prepare_table(table, heads[1]) is heads[1]
    x, norm = random(5, 128, seed=2), random(128, seed=3)
    logits = [
        k.logits(x, norm, EPS, head, rows(5)) for k, head in zip((exact, fast), heads, strict=True)
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    in_layer = fast.prepare_linear([table], [None])
    assert in_layer.packed.shape != heads[1].packed.shape


@pytest.mark.parametrize("width", [32, 50, 576])
def test_the_head_reads_only_the_rows_asked_for(int8: Int8Kernels, width: int) -> None:
    table, norm = quantise_matrix(random(99, width, seed=1)), random(width, seed=2)
    x = 100 * random(10, width, seed=3)
    chosen = np.array([7, 2, 9], np.int32)
    x[[0, 1, 3, 4, 5, 6, 8]] = np.nan
    head = int8.prepare_head(table, None)
    expected = reference_int8.linear_q8(norm_of(x[chosen], norm), table)
    result = int8.logits(x, norm, EPS, head, chosen)
    assert result.shape == (3, 99)
    assert relative_error(result, expected) < TOLERANCE


def weights_of(form: GroupForm, out_features: int, in_features: int) -> GroupedWeights:
    rng = np.random.default_rng(5)
    shape = (out_features, -(-in_features // form.group_size))
    scales = rng.uniform(0.001, 0.1, shape).astype(np.float16).astype(np.float32)
    if not form.half_scales:
        scales *= np.float32(1.2345)
    mins = rng.uniform(-0.5, -0.1, shape).astype(np.float16).astype(np.float32)
    return GroupedWeights(
        codes=rng.integers(0, 1 << form.bits, (out_features, in_features), np.uint8),
        scales=scales,
        mins=mins if form.has_minimum else scales * np.float32(-(1 << (form.bits - 1))),
        bits=form.bits,
        group_size=form.group_size,
    )


def matrix_bytes(matrix: Matrix) -> int:
    """Of the codes, or of the floats."""
    return matrix.codes.nbytes if isinstance(matrix, GroupedWeights) else matrix.nbytes


FORMS = [
    GroupForm(bits=bits, group_size=size, has_minimum=minimum, half_scales=half)
    for bits in (4, 8)
    for size, half in ((32, True), (32, False), (16, False))
    for minimum in (True, False)
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_of_a_packed_table_are_those_that_were_packed(
    library: object, form: GroupForm
) -> None:
    kernels = Int8Kernels(2)
    weights = weights_of(form, 101, 70)  # the last panel has fewer columns than the others
    table = kernels.prepare_table(weights, None)
    ids = np.array([0, 100, 47, 48, 99, 3, 3], np.int32)
    expected = weights.dequantize()[ids]
    np.testing.assert_allclose(kernels.embed(table, ids), expected, rtol=0, atol=1e-6)
    every = np.arange(101, dtype=np.int32)
    assert kernels.embed(table, every).shape == (101, 70)


def test_a_tied_table_is_the_head(library: object) -> None:
    kernels = Int8Kernels(1)
    table = quantise_matrix(random(50, 64, seed=1))
    head = kernels.prepare_head(table, None)
    assert kernels.prepare_table(table, head) is head


@pytest.mark.parametrize("bad", [-1, 50])
def test_an_id_outside_the_table_is_an_error(library: object, bad: int) -> None:
    kernels = Int8Kernels(1)
    table = kernels.prepare_table(random(50, 64, seed=1), None)
    with pytest.raises(ValueError, match=f"row {bad} is not in the matrix"):
        kernels.embed(table, np.array([0, bad], np.int32))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("shape", [(96, 576), (100, 64)])
def test_planned_bytes_are_those_of_the_packed_form(
    library: object, form: GroupForm, shape: tuple[int, int]
) -> None:
    kernels = Int8Kernels(1)
    packed = kernels.prepare_linear([weights_of(form, *shape)], [None]).num_bytes
    header_and_padding = 64 + 64 * 3
    planned = kernels.matrix_bytes(*shape, form, in_layer=True)
    assert 0 <= packed - planned <= header_and_padding


@pytest.mark.parametrize("form", [FORMS[0], FORMS[-1], None], ids=str)
@pytest.mark.parametrize("shape", [(96, 576), (100, 64), (50, 80), (48, 70)])
def test_planned_bytes_of_fast_compute(
    library: object, form: GroupForm | None, shape: tuple[int, int]
) -> None:
    kernels = Int8Kernels(1, quant_compute="fast")
    matrix = random(*shape, seed=1) if form is None else weights_of(form, *shape)
    packed = kernels.prepare_linear([matrix], [None]).num_bytes
    planned = kernels.matrix_bytes(*shape, form, in_layer=True)
    assert 0 <= packed - planned <= 64 + 64 * 3
    head = kernels.prepare_head(matrix, None).num_bytes
    exact = Int8Kernels(1).matrix_bytes(*shape, form, in_layer=True)
    assert kernels.matrix_bytes(*shape, form, in_layer=False) == exact
    assert 0 <= head - exact <= 64 + 64 * 3
    for in_layer in (True, False):
        preparing = kernels.preparing_bytes(*shape, form, in_layer=in_layer)
        assert preparing > kernels.matrix_bytes(*shape, form, in_layer=in_layer) + matrix_bytes(
            matrix
        )


@pytest.mark.parametrize(
    "forms", [FORMS[:1] + FORMS[-1:], FORMS[:2], [FORMS[3], FORMS[6], FORMS[7]]], ids=str
)
def test_planned_bytes_of_a_stack_of_different_types(
    library: object, forms: list[GroupForm]
) -> None:
    kernels = Int8Kernels(1)
    parts = [weights_of(form, 96, 64) for form in forms]
    packed = kernels.prepare_linear(parts, [None] * len(parts)).num_bytes
    planned = kernels.matrix_bytes(96 * len(parts), 64, stacked_form(forms), in_layer=True)
    assert 0 <= packed - planned <= 64 + 64 * len(parts) * 2


def test_planned_bytes_of_floats(library: object) -> None:
    kernels = Int8Kernels(1)
    packed = kernels.prepare_linear([random(100, 96, seed=1)], [None]).num_bytes
    planned = kernels.matrix_bytes(100, 96, None, in_layer=True)
    as_bytes = kernels.matrix_bytes(100, 96, QUANTISED_FLOATS, in_layer=True)
    assert planned == as_bytes == 112 * 3 * 34
    assert 0 <= packed - planned <= 256


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e7])
def test_floats_become_bytes_within_half_a_step(scale: float) -> None:
    matrix = random(40, 70, seed=1) * np.float32(scale)
    matrix[3, :32] = 0
    weights = quantise_matrix(matrix)
    groups = np.zeros((40, 96), np.float32)
    groups[:, :70] = matrix
    largest = np.abs(groups).reshape(40, 3, 32).max(axis=2)
    # Half a step of 1/127, more for a scale below the normal numbers of half precision.
    step = np.maximum(largest / 127, 6e-8).repeat(32, axis=1)[:, :70]
    assert (np.abs(weights.dequantize() - matrix) <= 0.51 * step + 1e-7 * np.abs(matrix)).all()
    assert (weights.bits, weights.group_size) == (8, 32)
    assert (weights.codes >= 1).all()


def test_infinite_weights_spoil_their_own_group_only() -> None:
    matrix = random(2, 64, seed=1)
    matrix[0, 5] = np.inf
    back = quantise_matrix(matrix).dequantize()
    assert np.isnan(back[0, :32]).all() and np.isfinite(back[0, 32:]).all()
    assert np.isfinite(back[1]).all()


# -- company -----------------------------------------------------------------------------------


def test_a_layer_in_a_batch_equals_it_alone(any_int8: Int8Kernels) -> None:
    """Bit for bit: together, alone, token by token, and in chunks that end anywhere."""
    int8 = any_int8
    layer = Layer(int8)
    head = int8.prepare_head(random(99, HIDDEN, seed=30), None)
    inputs = [random(21, HIDDEN, seed=31), random(70, HIDDEN, seed=32)]
    tables = [[4, 2], [0, 9, 3, 7, 1]]
    cache = layer.new_cache()

    def forward(*chunks: tuple[int, int, int]) -> FloatArray:
        layout = make_layout(
            [(end - first, end) for _, first, end in chunks],
            [tables[sequence] for sequence, _, _ in chunks],
            BLOCK_SIZE,
        )
        x = np.concatenate([inputs[s][first:end] for s, first, end in chunks])
        x = int8.mlp_block(layer.attend(x, cache, layout), layer.mlp, EPS)
        return int8.logits(x, layer.norm, EPS, head, rows(len(x)))

    together = forward((0, 0, 21), (1, 0, 70))
    np.testing.assert_array_equal(forward((0, 0, 21)), together[:21])
    one_by_one = np.concatenate([forward((1, at, at + 1)) for at in range(70)])
    np.testing.assert_array_equal(one_by_one, together[21:])
    cuts = [0, 3, 4, 20, 33, 64, 65, 70]
    chunked = [forward((1, a, b)) for a, b in zip(cuts, cuts[1:], strict=False)]
    np.testing.assert_array_equal(np.concatenate(chunked), together[21:])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_layer_on_any_number_of_threads(isa: str, kv_dtype: KvDtype) -> None:
    results = []
    for num_threads in (1, 2, 3):
        layer = Layer(Int8Kernels(num_threads, kv_dtype))
        layout = make_layout([(60, 60), (1, 1)], [[1, 2, 3, 4], [6]], BLOCK_SIZE)
        x = layer.attend(random(61, HIDDEN, seed=1), layer.new_cache(), layout)
        results.append(layer.kernels.mlp_block(x, layer.mlp, EPS))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_layers_of_one_step_may_differ_in_their_window(any_int8: Int8Kernels) -> None:
    """What a step's layers share is kept; a layer of another kind must not find it."""
    layer, other = Layer(any_int8), Layer(any_int8)
    other.spec = make_spec(6, 2, 32, sliding_window=4)
    layout = make_layout([(40, 40)], [[2, 0, 1]], BLOCK_SIZE)
    x = random(40, HIDDEN, seed=1)
    cache = layer.new_cache()
    wide, narrow = layer.attend(x, cache, layout), other.attend(x, cache, layout)
    np.testing.assert_array_equal(layer.attend(x, cache, layout), wide)
    np.testing.assert_array_equal(narrow[:4], wide[:4])
    assert (narrow[4:] != wide[4:]).any(axis=1).all()


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 8, 24])
def test_a_block_size_that_bytes_cannot_have(library: object, block_size: int) -> None:
    with pytest.raises(ConfigError, match=f"multiple of 16, not {block_size}") as caught:
        Int8Kernels(1).kv_block(3, 2, 32, block_size)
    assert caught.value.field == "block_size"


def test_bytes_of_a_block(library: object) -> None:
    """Codes of one byte, a float scale for each key and value, and nothing else."""
    block = Int8Kernels(1).kv_block(30, 3, 64, 32)
    assert block.num_bytes == 30 * 2 * 3 * 32 * (64 + 4)
    assert (block.shape[0], block.dtype, block.block_size) == (30, np.uint8, 32)
    assert (block.kv_dtype, block.token_bytes) == ("int8", 30 * 2 * 3 * (64 + 4))


@pytest.mark.parametrize(("kv_dtype", "size"), [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_bytes_of_a_block_of_floats(library: object, kv_dtype: KvDtype, size: int) -> None:
    """Of any block size."""
    block = Int8Kernels(1, kv_dtype).kv_block(30, 3, 64, 5)
    assert (block.kv_dtype, block.token_bytes) == (kv_dtype, 30 * 2 * 3 * 64 * size)
    assert block.num_bytes == 5 * block.token_bytes


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_head_size_that_these_kernels_cannot_have(library: object, kv_dtype: KvDtype) -> None:
    wanted = "head size that is a multiple of 16, not 24: set kernels to native"
    with pytest.raises(ConfigError, match=wanted) as caught:
        Int8Kernels(1, kv_dtype).kv_block(3, 2, 24, 16)
    assert caught.value.field == "kernels"


def test_a_head_size_that_only_bytes_cannot_have(library: object) -> None:
    wanted = "head size that is a multiple of 16 up to 512, not 528"
    with pytest.raises(ConfigError, match=wanted) as caught:
        Int8Kernels(1).kv_block(3, 2, 528, 16)
    assert caught.value.field == "kv_cache_dtype"
    assert Int8Kernels(1, "float16").kv_block(3, 2, 528, 16).kv_dtype == "float16"


def test_an_inner_size_that_does_not_interleave(library: object) -> None:
    with pytest.raises(ConfigError, match="multiple of 16, not 40: set kernels to native"):
        Int8Kernels(1).prepare_gate_up([random(40, 32, seed=1)] * 2, [None, None])


def test_weights_of_another_backend(library: object) -> None:
    foreign = ReferenceKernels(1).prepare_linear([random(8, 32, seed=1)], [None])
    with pytest.raises(TypeError, match="prepared by another backend: ReferenceLinear"):
        Int8Kernels(1).logits(random(2, 32, seed=1), random(32, seed=1), EPS, foreign, rows(1))


def test_arrays_that_do_not_fit(library: object) -> None:
    layer = Layer(Int8Kernels(1))
    layout = make_layout([(3, 3)], [[0]], BLOCK_SIZE)
    cache = layer.new_cache()
    with pytest.raises(ValueError, match="x must be dense float32"):
        layer.attend(random(4, HIDDEN, seed=1), cache, layout)
    with pytest.raises(ValueError, match="kv_cache must be uint8"):
        layer.attend(random(3, HIDDEN, seed=1), cache[:, :, :-1], layout)
    with pytest.raises(ValueError, match="layer 1 is not one of the cache's 1"):
        layer.attend(random(3, HIDDEN, seed=1), cache[:, :1], layout)
    with pytest.raises(ValueError, match="slot"):
        layer.attend(random(3, HIDDEN, seed=1), cache[:0], layout)
    with pytest.raises(ValueError, match="must be dense float32"):
        layer.kernels.mlp_block(random(3, HIDDEN + 1, seed=1), layer.mlp, EPS)
    with pytest.raises(ValueError, match="a bias"):
        layer.kernels.prepare_linear([random(8, 32, seed=1)], [random(9, seed=1)])
