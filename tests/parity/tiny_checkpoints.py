"""Tiny random checkpoints in the Hugging Face layout, one per model family and RoPE variant.

Owns the weights (from a fixed seed), the `config.json` keys that real checkpoints carry, and a
byte-level tokenizer.  Needs numpy and safetensors only, so the default tests can build at test
time the very folders for which `fixtures/tiny_logits.npz` holds the expected logits.

Sizes are the smallest at which a mistake shows: the test sequence is longer than every sliding
window and every `original_max_position_embeddings`, no norm weight is one, no bias is zero, and
logits spread over several units.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Config = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]

VOCAB_SIZE = 256
HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 96
NUM_LAYERS = 3
BOS_TOKEN = "<|bos|>"
EOS_TOKEN = "<|eos|>"
BOS_TOKEN_ID = 0
EOS_TOKEN_ID = 1
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)

# Standard deviations.  The gain of q and k keeps attention peaked, so that positions and windows
# matter; a small embedding keeps `rms_norm_eps` visible in the logits where it is not tied to the
# head.
QK_GAIN = 1.5
HEAD_GAIN = 1.5
NORM_SPREAD = 0.2
BIAS_SPREAD = 0.5
EMBEDDING_SPREAD = 0.05
TIED_EMBEDDING_SPREAD = 0.2

_LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}

_OVERRIDES: dict[str, Config] = {
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama_linear": {
        # `type` is the older spelling of `rope_type`; checkpoints of that time still carry it.
        "rope_scaling": {"type": "linear", "factor": 2.5},
        "tie_word_embeddings": True,
    },
    "llama_yarn": {
        "head_dim": 32,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama_yarn_explicit": {
        "head_dim": 32,
        "rope_theta": 1000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.25,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    },
    "llama_biases": {
        "num_key_value_heads": 4,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "head_dim": 32,
        "sliding_window": 24,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        # A window that is written down and switched off: it must have no effect.
        "use_sliding_window": False,
        "sliding_window": 24,
        "max_window_layers": 0,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 3,
    },
}

_SEEDS: dict[str, int] = {
    "llama3": 4101,
    "llama_linear": 4102,
    "llama_yarn": 4103,
    "llama_yarn_explicit": 4104,
    "llama_biases": 4105,
    "mistral": 4106,
    "qwen2": 4107,
    "qwen3": 4108,
}

# Keys that a family's real `config.json` does not have.
_ABSENT_KEYS: dict[str, tuple[str, ...]] = {
    "llama": (),
    "mistral": ("attention_bias", "mlp_bias", "rope_scaling"),
    "qwen2": ("attention_bias", "mlp_bias", "rope_scaling"),
    "qwen3": ("mlp_bias",),
}

VARIANTS: tuple[str, ...] = tuple(_OVERRIDES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorSpec:
    """Name, shape and distribution of one tensor: `mean + spread * standard_normal`."""

    name: str
    shape: tuple[int, ...]
    spread: float
    mean: float = 0.0


def tiny_config(variant: str) -> Config:
    """The content of `config.json`.

    Raises:
        ValueError: no variant has that name.
    """
    if variant not in _OVERRIDES:
        raise ValueError(f"variant {variant!r} is unknown; one of: {', '.join(VARIANTS)}")
    config = {
        **_LLAMA,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
        **_OVERRIDES[variant],
    }
    absent = _ABSENT_KEYS[str(config["model_type"])]
    return {key: value for key, value in config.items() if key not in absent}


def tiny_tensors(variant: str) -> Tensors:
    """All weights by their Hugging Face names, float32, the same on every call and machine.

    Linear weights are [out, in], the embedding and the head [vocab, hidden].
    """
    rng = np.random.Generator(np.random.PCG64(_SEEDS[variant]))
    tensors: Tensors = {}
    for spec in _tensor_specs(tiny_config(variant)):
        noise = rng.standard_normal(spec.shape, dtype=np.float32)
        tensors[spec.name] = np.float32(spec.mean) + np.float32(spec.spread) * noise
    return tensors


def fingerprint(tensors: Tensors) -> NDArray[np.float64]:
    """[3] sums over all weights: plain, absolute, and weighted by place in name order.

    A sum to be compared with a tolerance, not a hash: the last bit of a normal deviate is the C
    library's.
    """
    flat = np.concatenate([tensors[name].ravel() for name in sorted(tensors)]).astype(np.float64)
    place = np.arange(flat.size) * 7919 % 1009 / 1009 - 0.5  # neighbours get unlike weights
    return np.array([flat.sum(), np.abs(flat).sum(), (flat * place).sum()])


def make_tiny_checkpoint(variant: str, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json to `folder`.

    Raises:
        ValueError: no variant has that name.
    """
    config = tiny_config(variant)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", _tokenizer())
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS_TOKEN,
            "eos_token": EOS_TOKEN,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    save_file(tiny_tensors(variant), folder / "model.safetensors", metadata={"format": "pt"})


def _tensor_specs(config: Config) -> Iterator[_TensorSpec]:
    tied = config["tie_word_embeddings"]
    yield _TensorSpec(
        name="model.embed_tokens.weight",
        shape=(VOCAB_SIZE, HIDDEN_SIZE),
        spread=TIED_EMBEDDING_SPREAD if tied else EMBEDDING_SPREAD,
    )
    for layer in range(NUM_LAYERS):
        yield from _attention_specs(config, f"model.layers.{layer}")
        yield from _mlp_specs(config, f"model.layers.{layer}")
    yield _norm_spec("model.norm", HIDDEN_SIZE)
    if not tied:
        yield from _linear_specs("lm_head", HIDDEN_SIZE, VOCAB_SIZE, gain=HEAD_GAIN, bias=False)


def _attention_specs(config: Config, layer: str) -> Iterator[_TensorSpec]:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", HIDDEN_SIZE // heads)
    out_bias = config.get("attention_bias", False)
    qkv_bias = out_bias or config["model_type"] == "qwen2"
    yield _norm_spec(f"{layer}.input_layernorm", HIDDEN_SIZE)
    for name, width, gain in (
        ("q_proj", heads * head_dim, QK_GAIN),
        ("k_proj", kv_heads * head_dim, QK_GAIN),
        ("v_proj", kv_heads * head_dim, 1.0),
    ):
        yield from _linear_specs(
            f"{layer}.self_attn.{name}", HIDDEN_SIZE, width, gain=gain, bias=qkv_bias
        )
    if config["model_type"] == "qwen3":
        yield _norm_spec(f"{layer}.self_attn.q_norm", head_dim, mean=QK_GAIN)
        yield _norm_spec(f"{layer}.self_attn.k_norm", head_dim, mean=QK_GAIN)
    yield from _linear_specs(
        f"{layer}.self_attn.o_proj", heads * head_dim, HIDDEN_SIZE, gain=1.0, bias=out_bias
    )


def _mlp_specs(config: Config, layer: str) -> Iterator[_TensorSpec]:
    bias = config.get("mlp_bias", False)
    yield _norm_spec(f"{layer}.post_attention_layernorm", HIDDEN_SIZE)
    for name, fan_in, fan_out in (
        ("gate_proj", HIDDEN_SIZE, INTERMEDIATE_SIZE),
        ("up_proj", HIDDEN_SIZE, INTERMEDIATE_SIZE),
        ("down_proj", INTERMEDIATE_SIZE, HIDDEN_SIZE),
    ):
        yield from _linear_specs(f"{layer}.mlp.{name}", fan_in, fan_out, gain=1.0, bias=bias)


def _norm_spec(name: str, width: int, mean: float = 1.0) -> _TensorSpec:
    return _TensorSpec(name=f"{name}.weight", shape=(width,), spread=NORM_SPREAD, mean=mean)


def _linear_specs(
    name: str, fan_in: int, fan_out: int, *, gain: float, bias: bool
) -> Iterator[_TensorSpec]:
    spread = gain / float(np.sqrt(fan_in))
    yield _TensorSpec(name=f"{name}.weight", shape=(fan_out, fan_in), spread=spread)
    if bias:
        yield _TensorSpec(name=f"{name}.bias", shape=(fan_out,), spread=BIAS_SPREAD)


def _tokenizer() -> Config:
    """A byte-level BPE without merges: one token per UTF-8 byte, ids from 2 on."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    vocab = {BOS_TOKEN: BOS_TOKEN_ID, EOS_TOKEN: EOS_TOKEN_ID}
    for byte, character in sorted(_byte_characters().items()):
        # 0xC0, 0xC1 and 0xF5 and above never occur in UTF-8, which leaves room for two specials.
        if byte not in (0xC0, 0xC1) and byte < 0xF5:
            vocab[character] = len(vocab)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _special_token(BOS_TOKEN, BOS_TOKEN_ID),
            _special_token(EOS_TOKEN, EOS_TOKEN_ID),
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def _byte_characters() -> dict[int, str]:
    """The printable stand-in of each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(0x100) if byte not in table]
    table.update({byte: chr(0x100 + index) for index, byte in enumerate(others)})
    return table


def _special_token(content: str, token_id: int) -> Config:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _write_json(path: Path, content: Config) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
