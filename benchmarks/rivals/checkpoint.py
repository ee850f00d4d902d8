"""The GGUF model in the layout that other engines read: python checkpoint.py MODEL.gguf FOLDER

Needs torch, transformers, gguf and safetensors.  Weights are those of the file, in bfloat16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

PARTS = {
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
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def number(reader: gguf.GGUFReader, key: str) -> float:
    return reader.fields[f"llama.{key}"].contents()


def config_of(reader: gguf.GGUFReader) -> dict[str, object]:
    heads = int(number(reader, "attention.head_count"))
    hidden = int(number(reader, "embedding_length"))
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "head_dim": hidden // heads,
        "intermediate_size": int(number(reader, "feed_forward_length")),
        "num_hidden_layers": int(number(reader, "block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(number(reader, "attention.head_count_kv")),
        "max_position_embeddings": int(number(reader, "context_length")),
        "rms_norm_eps": number(reader, "attention.layer_norm_rms_epsilon"),
        "rope_theta": number(reader, "rope.freq_base"),
        "vocab_size": int(reader.fields["tokenizer.ggml.tokens"].data.__len__()),
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def rows_by_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """From pairs of neighbours, as this format rotates, to pairs of halves."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(weight.shape)


def tensors_of(reader: gguf.GGUFReader, config: dict[str, object]) -> dict[str, torch.Tensor]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    result = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = WHOLE.get(tensor.name)
        if name is None:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{PARTS[part]}.weight"
            if part in heads:
                weight = rows_by_halves(weight, heads[part])
        result[name] = torch.from_numpy(np.ascontiguousarray(weight)).to(torch.bfloat16)
    return result


def main() -> None:
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(str(model))
    config = config_of(reader)
    AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    save_file(tensors_of(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


main()
