"""Hugging Face names and their canonical counterparts."""

from __future__ import annotations

import gguf
import pytest

from chairlift.errors import ModelFileError
from chairlift.weights.tensor_names import canonical_name

LAYER_MODULES = {
    "input_layernorm": ("weight",),
    "self_attn.q_proj": ("weight", "bias"),
    "self_attn.k_proj": ("weight", "bias"),
    "self_attn.v_proj": ("weight", "bias"),
    "self_attn.o_proj": ("weight", "bias"),
    "self_attn.q_norm": ("weight",),
    "self_attn.k_norm": ("weight",),
    "post_attention_layernorm": ("weight",),
    "mlp.gate_proj": ("weight", "bias"),
    "mlp.up_proj": ("weight", "bias"),
    "mlp.down_proj": ("weight", "bias"),
}
NAMES = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"] + [
    f"model.layers.{layer}.{module}.{kind}"
    for layer in (0, 31)
    for module, kinds in LAYER_MODULES.items()
    for kind in kinds
]


@pytest.mark.parametrize("name", NAMES)
def test_names_agree_with_the_gguf_package(name: str) -> None:
    # qwen3's table is the one that holds every tensor of the four families.
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 32)
    assert canonical_name(name) == table.get_name(name, try_suffixes=(".weight", ".bias"))


def test_a_base_model_without_the_prefix() -> None:
    assert canonical_name("layers.3.mlp.up_proj.weight") == "blk.3.ffn_up.weight"
    assert canonical_name("embed_tokens.weight") == "token_embd.weight"


@pytest.mark.parametrize(
    "name", ["model.layers.7.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
)
def test_harmless_names_are_left_out(name: str) -> None:
    assert canonical_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.block_sparse_moe.gate.weight",
        "model.layers.0.mlp.gate_proj.weight_scale",
        "model.layers.00.mlp.up_proj.weight",
        "model.layers.-1.mlp.up_proj.weight",
        "model.layers.٣.mlp.up_proj.weight",
        "model.embed_tokens.bias",
        "visual.patch_embed.proj.weight",
        "",
    ],
)
def test_unknown_names_are_named(name: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        canonical_name(name)
    assert ascii(name) in str(caught.value)
