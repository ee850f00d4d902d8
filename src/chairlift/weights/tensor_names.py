"""Translates the tensor names of Hugging Face checkpoints into the canonical ones, GGUF's.

Knows the dense families that share the llama layout (llama, mistral, qwen2, qwen3).  NOTE: only
names are translated.  GGUF files of the llama architecture keep the rows of attn_q and attn_k in
the order that rotates neighbouring pairs, Hugging Face files in the order that rotates halves.
"""

from __future__ import annotations

import re

from chairlift.errors import ModelFileError

_TOP_LEVEL = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_LAYER = re.compile(r"layers\.(0|[1-9][0-9]{0,4})\.(.+)\.(weight|bias)")
# Tables that old exporters wrote although they follow from the configuration.
_HARMLESS = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def canonical_name(name: str) -> str | None:
    """The canonical name of the Hugging Face tensor `name`; None where it can be left out.

    Raises ModelFileError for a name that none of the known families has.
    """
    # A base model that was exported without its head lacks the prefix.
    bare = name.removeprefix("model.")
    if bare in _TOP_LEVEL:
        return _TOP_LEVEL[bare]
    if _HARMLESS.fullmatch(bare):
        return None
    match = _LAYER.fullmatch(bare)
    if match and match[2] in _IN_LAYER:
        return f"blk.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    raise ModelFileError(
        f"tensor {ascii(name)[:80]} is unknown: only dense llama, mistral, qwen2 and qwen3 "
        "checkpoints are supported"
    )
