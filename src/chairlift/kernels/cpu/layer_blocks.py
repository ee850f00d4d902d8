"""Halves of layers on the native library, one by one or all of a step in one call.

What a layer's structure says of its weights is filled in once and kept; a step writes the addresses
of its rows, and once for all layers what they have in common.  Within `one_call` nothing is
computed until the end, so the interpreter lock is free for a whole step and other threads can
deliver text and read requests meanwhile.  A call that was made before with as many rows is not
asked for block by block again: only what its layers have in common changes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from chairlift.kernels.aligned import address_of, aligned_empty
from chairlift.kernels.cpu.array_checks import check_array
from chairlift.kernels.cpu.attention_int8 import KvInt8Ops
from chairlift.kernels.cpu.block_tasks import AttentionBlockTask, BlockTask, MlpBlockTask
from chairlift.kernels.cpu.float_pages import block_size_of
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, AttentionTask, QkvToCacheTask
from chairlift.kernels.cpu.library import NativeLibrary
from chairlift.kernels.cpu.linear_q8 import as_quantised, check_floats, pointer
from chairlift.kernels.interface import (
    AttentionSpec,
    AttentionWeights,
    BatchLayout,
    FloatArray,
    KvArray,
    MlpWeights,
    Repeat,
    RopeTable,
)
from chairlift.kernels.kv_dtype import KvDtype, kv_dtype_of


@dataclass(frozen=True, slots=True)
class _AttentionLayer:
    """A layer's weights, which its structure points to, and the structure."""

    weights: AttentionWeights
    task: AttentionBlockTask
    hidden: int


@dataclass(frozen=True, slots=True)
class _MlpLayer:
    weights: MlpWeights
    task: MlpBlockTask
    hidden: int


@dataclass(slots=True)
class _Step:
    """What layers of one step have in common.  Holds what it points to."""

    batch: BatchLayout
    rope: RopeTable
    kv_cache: KvArray
    spec: AttentionSpec
    store: QkvToCacheTask
    attention: AttentionTask
    store_pointer: ctypes._Pointer[QkvToCacheTask]
    attention_pointer: ctypes._Pointer[AttentionTask]
    first_piece: int
    layer_stride: int

    def fits(
        self, spec: AttentionSpec, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
    ) -> bool:
        return (
            self.batch is batch
            and self.rope is rope
            and self.kv_cache is kv_cache
            and (self.spec is spec or self.spec == spec)
        )

    def take(self, batch: BatchLayout) -> None:
        """Point to another batch."""
        check_inputs(self.spec, self.rope, batch)
        self.batch = batch
        store, attention = self.store, self.attention
        store.num_tokens = attention.num_tokens = len(batch.positions)
        store.positions = address_of(batch.positions)
        store.slots = address_of(batch.slot_mapping)
        attention.query_start = address_of(batch.query_start)
        attention.context_lens = address_of(batch.context_lens)
        attention.block_tables = address_of(batch.block_tables)
        attention.num_sequences, attention.max_blocks = batch.block_tables.shape


@dataclass(slots=True)
class _Recording:
    """Blocks that wait for the end of `one_call`, each going on where the one before ends.

    So two arrays of rows are enough, in turns.
    """

    owner: object
    blocks: list[AttentionBlockTask | MlpBlockTask] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    """Identities of the blocks."""
    steps: list[_Step] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    newest: FloatArray | None = None
    """Where the last block will have written."""
    newest_address: int = 0
    other: FloatArray | None = None
    other_address: int = 0
    first_input: FloatArray | None = None
    owns_rows: bool = False
    """Nobody else has the arrays between the first block and the last."""

    def add(self, task: AttentionBlockTask | MlpBlockTask, x: FloatArray) -> FloatArray:
        """Where the block that reads `x` writes.  Raises ValueError if x is not the newest."""
        if id(task) in self.waiting:
            raise ValueError("within one call, a layer can have one turn only")
        if self.newest is None:
            self.first_input, self.shape = x, x.shape
            task.x = address_of(x)
        elif x is self.newest:
            task.x = self.newest_address
        else:
            raise ValueError("within one call, a block must go on where the one before ended")
        out, task.out = self.other, self.other_address
        if out is None:
            out = aligned_empty(*x.shape)
            task.out = address_of(out)
        self.other, self.other_address = self.newest, self.newest_address
        self.newest, self.newest_address = out, task.out
        self.waiting.add(id(task))
        self.blocks.append(task)
        return out

    def fits(self, owner: object, x: FloatArray, rope: RopeTable, kv_cache: KvArray) -> bool:
        """Whether the same blocks do for `x`."""
        return (
            self.owner is owner
            and owner is not None
            and self.shape == x.shape
            and all(step.rope is rope and step.kv_cache is kv_cache for step in self.steps)
        )

    def take(self, x: FloatArray, batch: BatchLayout) -> FloatArray:
        """The same once more from `x` on, into an array of its own."""
        check_floats("x", x, (len(batch.positions), self.shape[1]))
        if not self.owns_rows:
            self._turn_between(aligned_empty(*self.shape), aligned_empty(*self.shape))
        for step in self.steps:
            step.take(batch)
        result = aligned_empty(*self.shape)
        self.first_input, self.blocks[0].x = x, address_of(x)
        self.blocks[-1].out = address_of(result)
        return result

    def _turn_between(self, one: FloatArray, other: FloatArray) -> None:
        """Results between blocks go to these arrays, in turns."""
        self.newest, self.other = one, other
        places = address_of(one), address_of(other)
        for index, (block, after) in enumerate(pairwise(self.blocks)):
            block.out = after.x = places[index % 2]
        self.owns_rows = True


class LayerBlocks:
    """`attention` and `mlp` of `Kernels`, on the threads of `pool`."""

    def __init__(self, library: NativeLibrary, pool: ctypes.c_void_p, pages: KvInt8Ops) -> None:
        self._library = library
        self._pool = pool
        self._pages = pages
        self._attention_layers: dict[int, _AttentionLayer] = {}
        self._mlp_layers: dict[int, _MlpLayer] = {}
        self._steps: list[_Step] = []
        """Of the newest batch: one for each kind of attention."""
        self._recording: _Recording | None = None
        self._kept: tuple[_Recording, ctypes.Array[BlockTask]] | None = None
        """The last call, as long as its structures are as it left them."""

    @contextmanager
    def one_call(self, owner: object) -> Iterator[Repeat]:
        """Run the blocks that are asked for inside when it ends; results are empty until then."""
        kept, self._kept = self._kept, None
        recording = self._recording = _Recording(owner)
        is_repeated = False

        def repeat(
            x: FloatArray, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
        ) -> FloatArray | None:
            nonlocal is_repeated
            if kept is None or not kept[0].fits(owner, x, rope, kv_cache):
                return None
            is_repeated, self._recording = True, None
            return kept[0].take(x, batch)

        try:
            yield repeat
        finally:
            self._recording = None
        if kept is None or not is_repeated:
            kept = recording, _block_array(recording.blocks)
        self._run(kept[1])
        self._kept = kept if kept[0].blocks else None

    def attention(
        self,
        x: FloatArray,
        weights: AttentionWeights,
        spec: AttentionSpec,
        rope: RopeTable,
        kv_cache: KvArray,
        layer: int,
        batch: BatchLayout,
    ) -> FloatArray:
        """x + W_o attention(rope(W_qkv norm(x))); stores this step's keys and values first."""
        known = self._attention_layers.get(id(weights)) or self._add_attention(weights, spec)
        check_floats("x", x, (len(batch.positions), known.hidden))
        if not 0 <= layer < kv_cache.shape[1]:
            raise ValueError(f"layer {layer} is not one of the cache's {kv_cache.shape[1]}")
        step = self._step(spec, rope, kv_cache, batch)
        task = known.task
        task.kv_cache = step.first_piece + layer * step.layer_stride
        task.store, task.attention = step.store_pointer, step.attention_pointer
        return self._run_or_record(task, x)

    def mlp(self, x: FloatArray, weights: MlpWeights, eps: float) -> FloatArray:
        """x + W_down (silu(W_gate norm(x)) * W_up norm(x))."""
        known = self._mlp_layers.get(id(weights)) or self._add_mlp(weights)
        check_floats("x", x, (len(x), known.hidden))
        task = known.task
        task.rows, task.eps = len(x), eps
        return self._run_or_record(task, x)

    def _run_or_record(self, task: AttentionBlockTask | MlpBlockTask, x: FloatArray) -> FloatArray:
        if self._recording is not None:
            return self._recording.add(task, x)
        self._kept = None  # its structures may be the same
        out = aligned_empty(*x.shape)
        task.x, task.out = address_of(x), address_of(out)
        self._run(_block_array([task]))
        return out

    def _run(self, blocks: ctypes.Array[BlockTask]) -> None:
        self._library.check(
            self._library.functions.chairlift_run_blocks(self._pool, blocks, len(blocks))
        )

    def _add_attention(self, weights: AttentionWeights, spec: AttentionSpec) -> _AttentionLayer:
        qkv, output = as_quantised(weights.qkv), as_quantised(weights.output)
        check_floats("norm", weights.norm, (qkv.in_features,))
        for norm in (weights.q_norm, weights.k_norm):
            if norm is not None:
                check_floats("head norm", norm, (spec.head_dim,))
        task = AttentionBlockTask(
            struct_size=ctypes.sizeof(AttentionBlockTask),
            norm=weights.norm.ctypes.data,
            qkv=qkv.packed.ctypes.data,
            qkv_bias=pointer(qkv.bias),
            output=output.packed.ctypes.data,
            output_bias=pointer(output.bias),
            q_norm=pointer(weights.q_norm),
            k_norm=pointer(weights.k_norm),
        )
        known = _AttentionLayer(weights, task, qkv.in_features)
        self._attention_layers[id(weights)] = known
        return known

    def _add_mlp(self, weights: MlpWeights) -> _MlpLayer:
        gate_up, down = as_quantised(weights.gate_up), as_quantised(weights.down)
        check_floats("norm", weights.norm, (gate_up.in_features,))
        if down.out_features != gate_up.in_features:
            raise ValueError("the matrices of the MLP do not fit each other")
        task = MlpBlockTask(
            struct_size=ctypes.sizeof(MlpBlockTask),
            norm=weights.norm.ctypes.data,
            gate_up=gate_up.packed.ctypes.data,
            gate_up_bias=pointer(gate_up.bias),
            down=down.packed.ctypes.data,
            down_bias=pointer(down.bias),
        )
        known = _MlpLayer(weights, task, gate_up.in_features)
        self._mlp_layers[id(weights)] = known
        return known

    def _step(
        self, spec: AttentionSpec, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
    ) -> _Step:
        """The step's; layers after the first of their kind find it there."""
        for step in self._steps:
            if step.fits(spec, rope, kv_cache, batch):
                return step
        if self._steps and self._steps[0].batch is not batch:
            self._steps = []
        step = self._new_step(spec, rope, kv_cache, batch)
        self._steps.append(step)
        if self._recording is not None:
            self._recording.steps.append(step)
        return step

    def _new_step(
        self, spec: AttentionSpec, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
    ) -> _Step:
        check_inputs(spec, rope, batch)
        kv_dtype: KvDtype = "int8" if kv_cache.dtype == np.uint8 else kv_dtype_of(kv_cache)
        if kv_dtype == "int8":
            page = self._pages.piece_bytes(spec.num_kv_heads, spec.head_dim)
            check_pages(kv_cache, page)
            block_size = kv_cache.shape[2] // page * self._pages.block_size
        else:
            block_size = block_size_of(kv_cache, 0, spec.num_kv_heads, spec.head_dim)
        # Both structures have fields of these names.
        shared = {
            "block_stride": kv_cache.strides[0],
            "num_blocks": len(kv_cache),
            "num_tokens": len(batch.positions),
            "block_size": block_size,
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "kv_type": KV_TYPES[kv_dtype],
        }
        store = QkvToCacheTask(
            struct_size=ctypes.sizeof(QkvToCacheTask),
            cos=rope.cos.ctypes.data,
            sin=rope.sin.ctypes.data,
            positions=batch.positions.ctypes.data,
            slots=batch.slot_mapping.ctypes.data,
            max_position=len(rope.cos),
            rope_dim=spec.rope_dim,
            rope_interleaved=spec.rope_interleaved,
            norm_eps=spec.rms_norm_eps,
            **shared,
        )
        attention = AttentionTask(
            struct_size=ctypes.sizeof(AttentionTask),
            query_start=batch.query_start.ctypes.data,
            context_lens=batch.context_lens.ctypes.data,
            block_tables=batch.block_tables.ctypes.data,
            num_sequences=len(batch.context_lens),
            max_blocks=batch.block_tables.shape[1],
            sliding_window=spec.sliding_window or 0,
            scale=spec.scale,
            **shared,
        )
        return _Step(
            batch=batch,
            rope=rope,
            kv_cache=kv_cache,
            spec=spec,
            store=store,
            attention=attention,
            store_pointer=ctypes.pointer(store),
            attention_pointer=ctypes.pointer(attention),
            first_piece=kv_cache.ctypes.data,
            layer_stride=kv_cache.strides[1],
        )


def _block_array(tasks: list[AttentionBlockTask | MlpBlockTask]) -> ctypes.Array[BlockTask]:
    blocks = (BlockTask * len(tasks))()
    for block, task in zip(blocks, tasks, strict=True):
        if isinstance(task, MlpBlockTask):
            block.mlp = ctypes.pointer(task)
        else:
            block.attention = ctypes.pointer(task)
    return blocks


def check_inputs(spec: AttentionSpec, rope: RopeTable, batch: BatchLayout) -> None:
    """Raise ValueError unless the step's arrays fit together; the library checks the values."""
    num_tokens, num_sequences = len(batch.positions), len(batch.context_lens)
    check_array("cos", rope.cos, np.float32, (None, spec.rope_dim // 2))
    check_array("sin", rope.sin, np.float32, rope.cos.shape)
    check_array("positions", batch.positions, np.int32, (None,))
    check_array("slot_mapping", batch.slot_mapping, np.int64, (num_tokens,))
    check_array("query_start", batch.query_start, np.int32, (num_sequences + 1,))
    check_array("context_lens", batch.context_lens, np.int32, (None,))
    check_array("block_tables", batch.block_tables, np.int32, (num_sequences, None))


def check_pages(kv_cache: KvArray, page: int) -> None:
    """Raise ValueError unless the cache has dense pieces of whole pages of so many bytes."""
    if kv_cache.dtype != np.uint8 or kv_cache.ndim != 3 or kv_cache.shape[2] % page:
        raise ValueError(
            f"kv_cache must be uint8 [.., .., pages of {page}], not {kv_cache.dtype}"
            f" {kv_cache.shape}"
        )
    if kv_cache.strides[2] != 1:
        raise ValueError("kv_cache must have dense pieces")
