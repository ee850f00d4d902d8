"""A llama GGUF file as a transformers model and tokenizer, float32.

Knows how the file differs from the Hugging Face layout: tensor names, the row order of the q and k
weights, quantised blocks.  Independent of Chairlift's own reader on purpose: a mistake there must
not be repeated here.  Needs the extra `parity`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTROL_TOKEN_TYPE = 3  # llama.cpp's token type of special tokens
IMPLEMENTED_PRE_TOKENIZER = "smollm"

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufLlama:
    """One opened file.  Nothing is dequantised until `build_model`."""

    def __init__(self, path: Path) -> None:
        import gguf

        self._reader = gguf.GGUFReader(path)
        architecture = self._value("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path}: architecture {architecture!r} is not 'llama'")

    def build_model(self) -> Any:
        """A `LlamaForCausalLM` in float32 and eval mode, with eager attention."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**self._config(), attn_implementation="eager")
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        model = model.to_empty(device="cpu").float()
        # `to_empty` drops the RoPE frequencies too, which no checkpoint holds.
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        state = {name: torch.from_numpy(array) for name, array in self._tensors().items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        missing = [name for name in missing if name != "lm_head.weight"]
        if missing or unexpected:
            raise ValueError(f"tensors missing: {missing}, unexpected: {unexpected}")
        model.tie_weights()
        return model.eval()

    def build_tokenizer(self) -> Any:
        """A fast tokenizer from the file's vocabulary, merges and chat template."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        pre = self._value("tokenizer.ggml.pre")
        if pre != IMPLEMENTED_PRE_TOKENIZER:
            raise ValueError(f"pre-tokenizer {pre!r} is not {IMPLEMENTED_PRE_TOKENIZER!r}")
        tokens: list[str] = self._value("tokenizer.ggml.tokens")
        types: list[int] = self._value("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self._value("tokenizer.ggml.merges")]
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        controls = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN_TYPE]
        tokenizer.add_special_tokens(
            [AddedToken(content, special=True, normalized=False) for content in controls]
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=tokens[self.eos_token_id],
            chat_template=self._value("tokenizer.chat_template"),
        )

    @property
    def eos_token_id(self) -> int:
        """The token that ends a turn."""
        return int(self._value("tokenizer.ggml.eos_token_id"))

    def _value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ValueError(f"the GGUF file has no {key!r}")
        return field.contents()

    def _config(self) -> dict[str, Any]:
        names = {tensor.name for tensor in self._reader.tensors}
        return {
            "vocab_size": len(self._value("tokenizer.ggml.tokens")),
            "hidden_size": self._value("llama.embedding_length"),
            "intermediate_size": self._value("llama.feed_forward_length"),
            "num_hidden_layers": self._value("llama.block_count"),
            "num_attention_heads": self._value("llama.attention.head_count"),
            "num_key_value_heads": self._value("llama.attention.head_count_kv"),
            "max_position_embeddings": self._value("llama.context_length"),
            "rms_norm_eps": self._value("llama.attention.layer_norm_rms_epsilon"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self._value("llama.rope.freq_base"),
            },
            "tie_word_embeddings": "output.weight" not in names,
            "bos_token_id": self._value("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.eos_token_id,
        }

    def _tensors(self) -> dict[str, NDArray[np.float32]]:
        """Every weight by its Hugging Face name, [out, in]."""
        from gguf.quants import dequantize

        heads = {
            "attn_q": self._value("llama.attention.head_count"),
            "attn_k": self._value("llama.attention.head_count_kv"),
        }
        tensors = {}
        for tensor in self._reader.tensors:
            array = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            kind = tensor.name.split(".")[-2]
            if kind in heads:
                array = half_split_rows(array, heads[kind])
            tensors[_hugging_face_name(tensor.name)] = array
        return tensors


def half_split_rows(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo the row order of q and k in llama GGUF files.

    The file pairs neighbours for RoPE: rows 2i and 2i + 1 of a head turn together.  Transformers
    pairs i with i + head_dim / 2.  `weight` is [num_heads * head_dim, in].
    """
    rows, width = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, width)


def _hugging_face_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}"
