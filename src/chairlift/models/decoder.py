"""A pre-norm decoder with grouped-query attention and a gated MLP: what all our families share.

    x = E[tokens]
    x = x + W_o attention(rope(W_qkv norm(x)))        for each layer
    x = x + W_down (silu(W_gate norm(x)) * W_up norm(x))
    logits = W_head norm(x)

A family's file says how its checkpoint describes these; the arithmetic is the kernels'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from chairlift.errors import ModelFileError
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import (
    AttentionSpec,
    AttentionWeights,
    BatchLayout,
    FloatArray,
    IntArray,
    Kernels,
    KvArray,
    Linear,
    Matrix,
    MlpWeights,
    RopeTable,
    Table,
)
from chairlift.kernels.stored_floats import StoredFloats
from chairlift.models.model_config import ModelConfig
from chairlift.models.rope import RopeScaling, rope_frequencies, rope_magnitude

STACKS = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))
"""Matrices of a layer that are packed as one."""


class WeightSource(Protocol):
    """Tensors by their GGUF names."""

    def names(self) -> Collection[str]: ...

    def load(self, name: str) -> FloatArray: ...

    def load_grouped(self, name: str) -> GroupedWeights | None: ...

    def view(self, name: str) -> StoredFloats | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """One layer's weights and the numbers of its attention."""

    attention: AttentionWeights
    spec: AttentionSpec
    mlp: MlpWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A loaded model.  `forward`, then `candidates` or `logits`, is one step for T tokens."""

    config: ModelConfig
    kernels: Kernels
    embedding: Table
    layers: tuple[DecoderLayer, ...]
    output_norm: FloatArray
    head: Linear
    rope: RopeTable

    def forward(
        self,
        token_ids: IntArray,
        batch: BatchLayout,
        kv_cache: KvArray,
        rows: IntArray | None = None,
    ) -> FloatArray:
        """Hidden states [T, hidden] after the last layer; stores the tokens' keys and values.

        Of `rows` [R], in rising order, only, if given: [R, hidden].  Other tokens matter to nobody
        once the last layer has stored their keys and values, so its MLP leaves them out.
        """
        ops, eps, last = self.kernels, self.config.rms_norm_eps, self.layers[-1]
        leaves_out = rows is not None and len(rows) < len(token_ids)
        x = ops.embed(self.embedding, token_ids)
        with ops.one_call(None if leaves_out else self) as repeat:
            again = repeat(x, self.rope, kv_cache, batch)
            x = self._layers(x, batch, kv_cache, leaves_out) if again is None else again
        if not leaves_out:
            return x
        x = x[rows]
        return ops.mlp_block(x, last.mlp, eps) if len(x) else x

    def _layers(
        self, x: FloatArray, batch: BatchLayout, kv_cache: KvArray, leaves_out: bool
    ) -> FloatArray:
        """All layers; of the last one only the attention if `leaves_out`."""
        ops, eps, last = self.kernels, self.config.rms_norm_eps, self.layers[-1]
        for index, layer in enumerate(self.layers):
            x = ops.attention_block(
                x, layer.attention, layer.spec, self.rope, kv_cache, index, batch
            )
            if layer is not last or not leaves_out:
                x = ops.mlp_block(x, layer.mlp, eps)
        return x

    def final_states(self, x: FloatArray) -> FloatArray:
        """[R, hidden]: rows of the hidden states as the output head reads them."""
        return self.kernels.rms_norm(x, self.output_norm, self.config.rms_norm_eps)

    def logits(self, x: FloatArray, rows: IntArray) -> FloatArray:
        """[R, vocab] for R rows of the hidden states."""
        return self.kernels.logits(x, self.output_norm, self.config.rms_norm_eps, self.head, rows)

    def candidates(self, x: FloatArray, rows: IntArray, query: CandidateQuery) -> Candidates:
        """What `query` asks about the logits of R rows of the hidden states."""
        eps = self.config.rms_norm_eps
        return self.kernels.candidates(x, self.output_norm, eps, self.head, rows, query)


def load_decoder(
    config: ModelConfig,
    source: WeightSource,
    kernels: Kernels,
    *,
    max_position: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Decoder:
    """Read and pack all weights.  Raises `ModelFileError` if one is missing, odd or left over.

    `progress(layers done, layers in all)` is called after each layer.
    """
    weights = _Weights(source, kernels)
    hidden, vocab = config.hidden_size, config.vocab_size
    matrix = weights.matrix("token_embd.weight", (vocab, hidden))
    # The largest matrix first: while it is packed it is there twice, and nothing else yet.
    if config.tied_head:
        weights.ignore("output.weight")  # some files store the embedding a second time
    if weights.has("output.weight") or config.tied_head is False:
        head = weights.head(hidden, vocab)
        embedding = kernels.prepare_table(matrix, None)
    else:
        head = kernels.prepare_head(matrix, None)
        embedding = kernels.prepare_table(matrix, head)
    del matrix
    layers: list[DecoderLayer] = []
    for index in range(config.num_layers):
        layers.append(_load_layer(config, weights, index))
        progress(index + 1, config.num_layers)
    scaling = config.rope_scaling
    if weights.has("rope_freqs.weight"):
        if scaling is not None:
            raise ModelFileError(f"rope_freqs.weight beside {scaling.kind} scaling: not supported")
        factors = weights.array("rope_freqs.weight", (config.rope_dim // 2,))
        scaling = RopeScaling(kind="factors", factors=tuple(float(value) for value in factors))
    decoder = Decoder(
        config=config,
        kernels=kernels,
        embedding=embedding,
        layers=tuple(layers),
        output_norm=weights.array("output_norm.weight", (hidden,)),
        head=head,
        rope=kernels.rope_table(
            rope_frequencies(config.rope_theta, config.rope_dim, scaling),
            max_position=max_position,
            scaling=rope_magnitude(scaling),
        ),
    )
    weights.check_all_used(config.architecture)
    return decoder


def _load_layer(config: ModelConfig, weights: _Weights, index: int) -> DecoderLayer:
    name, hidden = f"blk.{index}.", config.hidden_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    is_sliding = config.sliding_window is not None and index >= config.first_sliding_layer
    head_norm = (config.head_dim,)
    attention = AttentionWeights(
        norm=weights.array(name + "attn_norm.weight", (hidden,)),
        qkv=weights.linear([name + part for part in STACKS[0]], hidden, [queries, keys, keys]),
        output=weights.linear([name + "attn_output"], queries, [hidden]),
        q_norm=weights.array(name + "attn_q_norm.weight", head_norm) if config.qk_norm else None,
        k_norm=weights.array(name + "attn_k_norm.weight", head_norm) if config.qk_norm else None,
    )
    spec = AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
        rope_dim=config.rope_dim,
        rope_interleaved=config.rope_interleaved,
        sliding_window=config.sliding_window if is_sliding else None,
    )
    inner = config.intermediate_size
    mlp = MlpWeights(
        norm=weights.array(name + "ffn_norm.weight", (hidden,)),
        gate_up=weights.gate_up(name, hidden, inner),
        down=weights.linear([name + "ffn_down"], inner, [hidden]),
    )
    return DecoderLayer(attention=attention, spec=spec, mlp=mlp)


class _Weights:
    """Loads tensors with their shapes checked, and remembers which have been used."""

    def __init__(self, source: WeightSource, kernels: Kernels) -> None:
        self._source = source
        self._kernels = kernels
        self._names = frozenset(source.names())
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._names

    def ignore(self, name: str) -> None:
        self._names -= {name}

    def array(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        if name not in self._names:
            raise ModelFileError(f"the model lacks the tensor {name}")
        self._used.add(name)
        array = self._source.load(name)
        _check_shape(name, array.shape, shape)
        return array

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """As its file holds it, if the kernels take it so."""
        if self._kernels.packs_quantised and name in self._names:
            grouped = self._source.load_grouped(name)
            if grouped is not None:
                self._used.add(name)
                _check_shape(name, grouped.codes.shape, shape)
                return grouped
        if self._kernels.packs_stored and name in self._names:
            stored = self._source.view(name)
            if stored is not None:
                self._used.add(name)
                _check_shape(name, stored.shape, shape)
                return stored
        return self.array(name, shape)

    def linear(self, names: list[str], in_features: int, out_features: list[int]) -> Linear:
        """Matrices stacked along their output, with the biases that the file has."""
        return self._kernels.prepare_linear(*self._parts(names, in_features, out_features))

    def head(self, in_features: int, out_features: int) -> Linear:
        (matrix,), (bias,) = self._parts(["output"], in_features, [out_features])
        return self._kernels.prepare_head(matrix, bias)

    def gate_up(self, prefix: str, in_features: int, inner: int) -> Linear:
        names = [prefix + part for part in STACKS[1]]
        return self._kernels.prepare_gate_up(*self._parts(names, in_features, [inner, inner]))

    def _parts(
        self, names: list[str], in_features: int, out_features: list[int]
    ) -> tuple[list[Matrix], list[FloatArray | None]]:
        matrices: list[Matrix] = []
        biases: list[FloatArray | None] = []
        for name, out in zip(names, out_features, strict=True):
            matrices.append(self.matrix(f"{name}.weight", (out, in_features)))
            has_bias = self.has(f"{name}.bias")
            biases.append(self.array(f"{name}.bias", (out,)) if has_bias else None)
        return matrices, biases

    def check_all_used(self, architecture: str) -> None:
        """A tensor that we do not use means that we would compute another model."""
        unused = sorted(self._names - self._used)
        if unused:
            raise ModelFileError(
                f"{len(unused)} tensors are unknown for architecture {architecture!r},"
                f" the first is {unused[0]}"
            )


def _check_shape(name: str, actual: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if actual != wanted:
        raise ModelFileError(f"tensor {name} has shape {actual}, expected {wanted}")
