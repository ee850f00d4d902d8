"""One model in two kinds of file gives the same logits; a file with odd tensors gives none.

GGUF files are written by the `gguf` package from the tiny checkpoints whose logits are known, the
rows of q and k reordered for the llama architecture as converters do it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.errors import ModelFileError
from chairlift.kernels.interface import KvArray
from chairlift.kernels.reference import ReferenceKernels
from chairlift.kernels.registry import create_kernels
from chairlift.models.decoder import Decoder, load_decoder
from chairlift.models.model_config import ModelConfig
from chairlift.models.registry import read_model_config
from chairlift.runner.forward_batch import build_layout
from chairlift.runner.kv_cache import KVCache
from chairlift.sampling_params import SamplingParams
from chairlift.weights.checkpoint import open_checkpoint
from chairlift.weights.tensor_names import canonical_name
from engines import Job, load, make_engine, run_jobs, tokens_of
from parity.tiny_checkpoints import Tensors, make_tiny_checkpoint, tiny_config, tiny_tensors

Types = gguf.GGMLQuantizationType
TOKEN_IDS = [(17 * i + 5) % 250 + 2 for i in range(90)]
"""Longer than the trained length of the scaled variants."""


def logits_of(path: Path, kernels: str) -> NDArray[np.float32]:
    """[T, vocab] of TOKEN_IDS."""
    with open_checkpoint(path) as checkpoint:
        config = read_model_config(checkpoint.kind, checkpoint.metadata)
        model = load_decoder(config, checkpoint, create_kernels(kernels, 1), max_position=128)
    return forward(model)


def forward(model: Decoder) -> NDArray[np.float32]:
    hidden = hidden_states(model)[0]
    return model.logits(hidden, np.arange(len(TOKEN_IDS), dtype=np.int32))


def hidden_states(
    model: Decoder, rows: list[int] | None = None
) -> tuple[NDArray[np.float32], KvArray]:
    """Of TOKEN_IDS, and the cache that is left."""
    count = len(TOKEN_IDS)
    config = model.config
    block = model.kernels.kv_block(config.num_layers, config.num_kv_heads, config.head_dim, 16)
    cache = KVCache(block, num_blocks=8)
    item = ScheduledRequest("", "prefill", 0, count, [7, 3, 1, 0, 2, 5], False)
    layout = build_layout([item], 16)
    token_ids = np.array(TOKEN_IDS, np.int32)
    wanted = None if rows is None else np.array(rows, np.int32)
    return model.forward(token_ids, layout, cache.blocks, wanted), cache.blocks


@pytest.mark.parametrize("kernels", ["reference", "native", "int8"])
@pytest.mark.parametrize("rows", [[], [0], [3, 4, 89], list(range(90))])
def test_some_rows_are_those_of_all(kernels: str, rows: list[int], tmp_path: Path) -> None:
    make_tiny_checkpoint("llama3", tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        config = read_model_config(checkpoint.kind, checkpoint.metadata)
        model = load_decoder(config, checkpoint, create_kernels(kernels, 2), max_position=128)
    all_rows, whole_cache = hidden_states(model)
    some, cache = hidden_states(model, rows)
    assert some.shape == (len(rows), config.hidden_size)
    assert np.array_equal(some, all_rows[rows])
    assert np.array_equal(cache.view(np.uint8), whole_cache.view(np.uint8))


def interleaved(tensor: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows (i, i + D/2) of each head become neighbours (2i, 2i + 1)."""
    halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)


def llama3_factors(config: dict[str, Any]) -> NDArray[np.float32]:
    """The divisors that converters store, from the published rule on wavelengths."""
    rope, dim = config["rope_scaling"], config["hidden_size"] // config["num_attention_heads"]
    factors = []
    for i in range(dim // 2):
        wave = 2 * math.pi * config["rope_theta"] ** (2 * i / dim)
        trained = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = min(1.0, max(0.0, (trained / wave - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def write_gguf(
    path: Path, variant: str, kind: Types, *, change: Callable[[Tensors], None] = lambda _: None
) -> None:
    """The tiny checkpoint `variant` as a GGUF file with its matrices of type `kind`."""
    config = tiny_config(variant)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    is_llama = config["model_type"] in ("llama", "mistral")
    writer = gguf.GGUFWriter(path, "llama" if is_llama else config["model_type"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window") and is_llama:
        writer.add_sliding_window(config["sliding_window"])
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    tensors = {}
    for name, tensor in tiny_tensors(variant).items():
        canonical = canonical_name(name)
        assert canonical is not None
        if is_llama and ".attn_q." in canonical:
            tensor = interleaved(tensor, heads)
        if is_llama and ".attn_k." in canonical:
            tensor = interleaved(tensor, kv_heads)
        tensors[canonical] = tensor
    rope = config.get("rope_scaling") or {}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(config)
    elif rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    change(tensors)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_rounded_folder(folder: Path, variant: str, kind: Types) -> None:
    """The Hugging Face folder of the same weights, each matrix rounded as `kind` rounds it."""
    make_tiny_checkpoint(variant, folder)
    tensors = {
        name: tensor if tensor.ndim == 1 else dequantize(quantize(tensor, kind), kind)
        for name, tensor in tiny_tensors(variant).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("variant", "kind", "kernels"),
    [
        *[
            (variant, Types.F32, kernels)
            for kernels in ("reference", "native")
            for variant in (
                "llama3",  # neighbours rotate; factors stored as a tensor
                "llama_linear",  # a tied head
                "llama_yarn",
                "llama_biases",  # biases of q and k are reordered too
                "mistral",  # a sliding window
                "qwen2",  # halves rotate; biases; a tied head
                "qwen3",  # norms on heads
            )
        ],
        *[(v, kind, "native") for v in ("llama3", "qwen2") for kind in (Types.F16, Types.Q8_0)],
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_gguf_logits_equal_those_of_the_folder(
    variant: str, kind: Types, kernels: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "model.gguf", variant, kind)
    write_rounded_folder(tmp_path / "folder", variant, kind)
    got = logits_of(tmp_path / "model.gguf", kernels)
    expected = logits_of(tmp_path / "folder", kernels)
    # Reordered rows are summed in another order, so the last bits of logits near 5 differ.
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("variant", ["llama_linear", "llama_biases", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", [Types.F32, Types.F16, Types.Q8_0, Types.Q4_1, Types.Q5_0])
def test_bytes_are_close_to_the_same_weights_in_float32(
    variant: str, kind: Types, tmp_path: Path
) -> None:
    """Whatever the file's type; tied and untied heads, biases, norms on heads, a window.

    Catches a part left out; details are for the kernels' own tests.
    """
    write_gguf(tmp_path / "model.gguf", variant, kind)
    got = logits_of(tmp_path / "model.gguf", "int8")
    expected = logits_of(tmp_path / "model.gguf", "reference")
    spread = expected.std(axis=1, keepdims=True)
    assert np.abs((got - expected) / spread).mean() < 0.07


def test_the_order_of_rows_matters(tmp_path: Path) -> None:
    """The comparison above could not pass with the rows of q as they are in the folder."""

    def undo(tensors: Tensors) -> None:
        plain = tiny_tensors("llama3")["model.layers.0.self_attn.q_proj.weight"]
        tensors["blk.0.attn_q.weight"] = plain

    write_gguf(tmp_path / "model.gguf", "llama3", Types.F32, change=undo)
    make_tiny_checkpoint("llama3", tmp_path / "folder")
    got = logits_of(tmp_path / "model.gguf", "reference")
    assert np.abs(got - logits_of(tmp_path / "folder", "reference")).max() > 0.1


def test_a_folder_of_bf16_shards_loads_and_generates(tmp_path: Path) -> None:
    """Weights cut to the upper half of their bits, so that both folders hold the same numbers."""
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    make_tiny_checkpoint("qwen2", whole)
    make_tiny_checkpoint("qwen2", sharded)
    (sharded / "model.safetensors").unlink()
    cut = {
        name: (tensor.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        for name, tensor in tiny_tensors("qwen2").items()
    }
    save_file(cut, whole / "model.safetensors")
    write_bf16_shards(sharded, cut, num_shards=3)
    np.testing.assert_array_equal(logits_of(sharded, "native"), logits_of(whole, "native"))
    job = Job(prompt="Hello", params=SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    options: dict[str, Any] = {"kv_cache_memory": "4MiB"}
    texts = [run_jobs(make_engine(load(path, **options)), [job]) for path in (whole, sharded)]
    assert tokens_of(texts[0]) == tokens_of(texts[1])
    assert len(tokens_of(texts[1])[0][0]) == 8


def write_bf16_shards(folder: Path, tensors: Tensors, num_shards: int) -> None:
    """Numpy has no BF16, so the files are written by hand."""
    names, weight_map = sorted(tensors), {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        header, data = {}, b""
        for name in names[shard::num_shards]:
            raw = (tensors[name].view(np.uint32) >> 16).astype("<u2").tobytes()
            header[name] = {
                "dtype": "BF16",
                "shape": list(tensors[name].shape),
                "data_offsets": [len(data), len(data) + len(raw)],
            }
            data += raw
            weight_map[name] = file_name
        text = json.dumps(header).encode()
        (folder / file_name).write_bytes(len(text).to_bytes(8, "little") + text + data)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


class Arrays:
    """A source of weights in memory."""

    def __init__(self, tensors: dict[str, NDArray[np.float32]]) -> None:
        self.tensors = tensors

    def names(self) -> Collection[str]:
        return self.tensors

    def load(self, name: str) -> NDArray[np.float32]:
        return self.tensors[name]


def source(variant: str = "llama3") -> tuple[ModelConfig, Arrays]:
    config = read_model_config("huggingface", {"config": tiny_config(variant)})
    tensors = {canonical_name(name): array for name, array in tiny_tensors(variant).items()}
    return config, Arrays({name: array for name, array in tensors.items() if name is not None})


def load_from(config: ModelConfig, arrays: Arrays, **options: Any) -> Decoder:
    return load_decoder(config, arrays, ReferenceKernels(1), max_position=128, **options)


@pytest.mark.parametrize("variant", ["llama3", "qwen2", "qwen3"])
def test_every_tensor_is_needed_and_named_if_it_is_missing(variant: str) -> None:
    names = sorted(source(variant)[1].tensors)
    for name in names:
        config, arrays = source(variant)
        if name.startswith("blk.1.") or name.endswith(".bias"):
            continue  # the other layers stand for it; a bias may be absent
        del arrays.tensors[name]
        with pytest.raises(ModelFileError, match=f"the model lacks the tensor {name}"):
            load_from(config, arrays)


@pytest.mark.parametrize("variant", ["llama_biases", "qwen3"])
def test_a_tensor_of_the_wrong_shape_is_named(variant: str) -> None:
    for name in sorted(source(variant)[1].tensors):
        if name.startswith("blk.1."):
            continue
        config, arrays = source(variant)
        arrays.tensors[name] = arrays.tensors[name][:-1]
        with pytest.raises(ModelFileError, match=rf"tensor {name} has shape .*, expected \("):
            load_from(config, arrays)


def test_a_transposed_matrix_is_refused() -> None:
    config, arrays = source()
    arrays.tensors["blk.0.ffn_up.weight"] = arrays.tensors["blk.0.ffn_up.weight"].T
    with pytest.raises(ModelFileError, match=r"ffn_up.weight has shape \(64, 96\)"):
        load_from(config, arrays)


@pytest.mark.parametrize(
    "name", ["blk.3.attn_norm.weight", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate_exps.weight"]
)
def test_a_tensor_that_nobody_uses_is_named(name: str) -> None:
    """It means that another model would be computed than the file holds."""
    config, arrays = source()
    arrays.tensors[name] = np.ones(64, np.float32)
    with pytest.raises(
        ModelFileError, match=f"unknown for architecture 'llama', the first is {name}"
    ):
        load_from(config, arrays)


def test_a_vocabulary_of_another_size_than_the_embedding() -> None:
    config, arrays = source()
    arrays.tensors["token_embd.weight"] = np.ones((255, 64), np.float32)
    with pytest.raises(ModelFileError, match=r"token_embd.weight has shape \(255, 64\), expected"):
        load_from(config, arrays)


def test_an_untied_head_must_be_in_the_file() -> None:
    config, arrays = source("llama3")
    assert config.tied_head is False
    del arrays.tensors["output.weight"]
    with pytest.raises(ModelFileError, match="lacks the tensor output.weight"):
        load_from(config, arrays)


def test_a_tied_head_is_the_embedding_whatever_is_stored_beside_it() -> None:
    config, arrays = source("qwen2")
    assert config.tied_head is True
    expected = forward(load_from(config, arrays))
    arrays.tensors["output.weight"] = np.zeros((256, 64), np.float32)
    np.testing.assert_array_equal(forward(load_from(config, arrays)), expected)


def test_two_ways_to_scale_positions_at_once() -> None:
    config, arrays = source("llama_linear")
    arrays.tensors["rope_freqs.weight"] = np.ones(8, np.float32)
    with pytest.raises(ModelFileError, match="rope_freqs.weight beside linear scaling"):
        load_from(config, arrays)


def test_progress_counts_layers() -> None:
    config, arrays = source()
    seen: list[tuple[int, int]] = []
    load_from(config, arrays, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_only_the_wanted_rows_reach_the_head() -> None:
    config, arrays = source()
    model = load_from(config, arrays)
    hidden = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    rows = model.logits(hidden, np.array([4, 0, 4], np.int32))
    alone = model.logits(hidden, np.array([4], np.int32))
    np.testing.assert_array_equal(rows[[0, 2]], np.repeat(alone, 2, axis=0))
