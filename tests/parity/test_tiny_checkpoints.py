"""The tiny checkpoints and the committed fixtures belong together; no torch needed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from parity.parity_fixtures import (
    SMOLLM2_GREEDY,
    TINY_LOGITS,
    load_greedy,
    load_tiny,
    save_greedy,
    save_tiny,
)
from parity.prompts import PROMPTS
from parity.tiny_checkpoints import (
    BOS_TOKEN_ID,
    EOS_TOKEN_ID,
    VARIANTS,
    VOCAB_SIZE,
    fingerprint,
    make_tiny_checkpoint,
    tiny_config,
    tiny_tensors,
)

EOS_OF_DEFAULT_MODEL = 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_those_of_the_fixture(variant: str) -> None:
    committed = load_tiny().variants[variant].fingerprint
    np.testing.assert_allclose(fingerprint(tiny_tensors(variant)), committed, rtol=1e-6, atol=1e-4)


def test_fingerprint_sees_a_changed_and_a_moved_weight() -> None:
    tensors = tiny_tensors("qwen2")
    committed = fingerprint(tensors)
    name = "model.norm.weight"
    moved = {**tensors, name: np.roll(tensors[name], 32)}
    changed = {**tensors, name: tensors[name] + np.float32(0.01)}
    assert not np.allclose(fingerprint(moved), committed, rtol=1e-6, atol=1e-4)
    assert not np.allclose(fingerprint(changed), committed, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_folder_is_complete_and_the_same_every_time(variant: str, tmp_path: Path) -> None:
    digests = []
    for name in ("first", "second"):
        make_tiny_checkpoint(variant, tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        digests.append({f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files})
    assert digests[0] == digests[1]
    assert set(digests[0]) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    folder = tmp_path / "first"
    assert json.loads((folder / "config.json").read_text()) == tiny_config(variant)
    stored = load_file(folder / "model.safetensors")
    for tensor_name, tensor in tiny_tensors(variant).items():
        assert stored[tensor_name].dtype == np.float32
        np.testing.assert_array_equal(stored[tensor_name], tensor)


def test_variants_have_the_tensors_of_their_family() -> None:
    names = {variant: tiny_tensors(variant).keys() for variant in VARIANTS}
    layer = "model.layers.2"
    assert {v for v in VARIANTS if "lm_head.weight" not in names[v]} == {"llama_linear", "qwen2"}
    assert {v for v in VARIANTS if f"{layer}.self_attn.q_norm.weight" in names[v]} == {"qwen3"}
    assert {v for v in VARIANTS if f"{layer}.mlp.down_proj.bias" in names[v]} == {"llama_biases"}
    assert {v for v in VARIANTS if f"{layer}.self_attn.o_proj.bias" in names[v]} == {"llama_biases"}
    assert {v for v in VARIANTS if f"{layer}.self_attn.k_proj.bias" in names[v]} == {
        "llama_biases",
        "qwen2",
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_norm_is_one_and_no_bias_is_zero(variant: str) -> None:
    for name, tensor in tiny_tensors(variant).items():
        if name.endswith("norm.weight"):
            assert np.abs(tensor - 1).max() > 0.1, name
        if name.endswith(".bias"):
            assert np.abs(tensor).max() > 0.1, name


def test_unknown_variant_is_named() -> None:
    with pytest.raises(ValueError, match="'llama9' is unknown; one of: llama3,"):
        tiny_config("llama9")


@pytest.mark.parametrize("text", ["plain", "naïve café 🚡\n\t", "长城 ½", ""])
def test_tiny_tokenizer_gives_bytes_and_gives_them_back(text: str, tmp_path: Path) -> None:
    make_tiny_checkpoint("llama3", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    token_ids = tokenizer.encode(text).ids
    assert len(token_ids) == len(text.encode())
    assert all(EOS_TOKEN_ID < token_id < VOCAB_SIZE for token_id in token_ids)
    assert tokenizer.decode(token_ids) == text
    assert tokenizer.encode("<|bos|><|eos|>").ids == [BOS_TOKEN_ID, EOS_TOKEN_ID]


def test_tiny_fixture_reaches_past_windows_and_original_lengths() -> None:
    fixture = load_tiny()
    assert tuple(fixture.variants) == VARIANTS
    for variant, expected in fixture.variants.items():
        config = tiny_config(variant)
        scaling = config.get("rope_scaling") or {}
        last = int(expected.positions[-1])
        assert last == len(expected.token_ids) - 1
        assert last > scaling.get("original_max_position_embeddings", 0)
        assert last > 2 * (config.get("sliding_window") or 0)
        assert expected.logits.shape == (len(expected.positions), VOCAB_SIZE)
        assert expected.logits.dtype == np.float32
        assert expected.logits.std() > 1.0


def test_greedy_fixture_is_consistent() -> None:
    fixture = load_greedy()
    assert [sample.name for sample in fixture.samples] == list(PROMPTS)
    for sample in fixture.samples:
        count = len(sample.token_ids)
        assert count == len(sample.margins) == len(sample.logprobs)
        assert min(sample.margins) > 0 >= max(sample.logprobs)
        ended = EOS_OF_DEFAULT_MODEL in sample.token_ids
        assert sample.token_ids.index(EOS_OF_DEFAULT_MODEL) == count - 1 if ended else count == 64
        for message in PROMPTS[sample.name]:
            assert message["content"] in sample.prompt_text


def test_fixtures_survive_a_round_trip(tmp_path: Path) -> None:
    save_greedy(load_greedy(), tmp_path / "greedy.json")
    assert (tmp_path / "greedy.json").read_bytes() == SMOLLM2_GREEDY.read_bytes()
    tiny = load_tiny()
    save_tiny(tiny, tmp_path / "tiny.npz")
    again = load_tiny(tmp_path / "tiny.npz")
    assert again.meta == tiny.meta
    for variant, expected in tiny.variants.items():
        np.testing.assert_array_equal(again.variants[variant].logits, expected.logits)


def test_fixtures_stay_small() -> None:
    assert SMOLLM2_GREEDY.stat().st_size < 300_000
    assert TINY_LOGITS.stat().st_size < 400_000
