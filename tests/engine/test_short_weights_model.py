"""Models in 16 bits on float32 kernels: no float32 copy anywhere, and tokens as with one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.kernels.cpu.ops import NativeLinear
from chairlift.sampling_params import SamplingParams
from chairlift.weights.checkpoint import HuggingFaceCheckpoint
from engines import Job, load, make_engine, run_jobs, tokens_of
from parity.tiny_checkpoints import tiny_tensors
from unit.models.test_decoder import Types, write_bf16_shards, write_gguf

VARIANTS = ("llama3", "qwen2")
"""A head of its own, and a tied one."""


def bf16_folder(folder: Path, plain: Path, variant: str) -> Path:
    shutil.copytree(plain, folder)
    (folder / "model.safetensors").unlink()
    write_bf16_shards(folder, tiny_tensors(variant), num_shards=1)
    return folder


def linears_of(model: LoadedModel) -> list[NativeLinear]:
    decoder = model.runner.model
    found = [decoder.head]
    if decoder.embedding is not decoder.head:
        found.append(decoder.embedding)  # type: ignore[arg-type]
    for layer in decoder.layers:
        found += [layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down]
    assert all(isinstance(linear, NativeLinear) for linear in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_bf16_folder_is_never_widened(
    tmp_path: Path,
    tiny_folder: Callable[[str], Path],
    variant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[tuple[int, ...]] = []
    original = HuggingFaceCheckpoint.load

    def recording(checkpoint: HuggingFaceCheckpoint, name: str) -> np.ndarray:
        loaded.append(checkpoint.shape(name))
        return original(checkpoint, name)

    monkeypatch.setattr(HuggingFaceCheckpoint, "load", recording)
    model = load(bf16_folder(tmp_path / "bf16", tiny_folder(variant), variant), kernels="native")
    assert loaded and all(len(shape) == 1 for shape in loaded), "a matrix became float32"
    linears = linears_of(model)
    assert {linear.form for linear in linears} == {"bfloat16"}
    vectors = 4 * sum(shape[0] for shape in loaded)
    held = sum(linear.num_bytes for linear in linears) + vectors
    assert model.resolved.memory.weights_bytes == held
    assert model.resolved.weights == {"bfloat16": held - vectors, "float32": vectors}
    whole = load(tiny_folder(variant), kernels="native")
    assert whole.resolved.memory.weights_bytes - vectors == 2 * (held - vectors)


@pytest.mark.parametrize("kind", [Types.F16, Types.BF16, Types.F32, Types.Q8_0])
def test_a_gguf_file_is_held_as_planned(tmp_path: Path, kind: Types) -> None:
    write_gguf(tmp_path / "model.gguf", "qwen2", kind)
    model = load_gguf(tmp_path / "model.gguf")
    expected = {Types.F16: "float16", Types.BF16: "bfloat16"}.get(kind)
    linears = linears_of(model)
    assert {linear.form for linear in linears} == {expected}
    held = sum(linear.num_bytes for linear in linears)
    assert 0 < model.resolved.memory.weights_bytes - held < 8192, "norms and biases"


def load_gguf(path: Path) -> LoadedModel:
    """These tiny files have no vocabulary that a tokenizer could use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chairlift.engine.loaded_model._open_tokenizer", _no_tokenizer)
        patch.setattr("chairlift.engine.loaded_model._chat_template", lambda tokenizer: None)
        return load(path, kernels="native")


class _NoTokenizer:
    def check_vocab_size(self, size: int) -> None: ...


def _no_tokenizer(*_: object) -> _NoTokenizer:
    return _NoTokenizer()


@pytest.mark.parametrize("variant", VARIANTS)
def test_company_and_chunks_change_no_token_in_16_bits(
    tmp_path: Path, tiny_folder: Callable[[str], Path], variant: str
) -> None:
    model = load(bf16_folder(tmp_path / "bf16", tiny_folder(variant), variant), kernels="native")
    jobs = [
        Job(
            prompt=[(11 * i + 7 * j) % 250 + 2 for i in range(5 + 9 * j)],
            params=SamplingParams(
                max_tokens=6 + j, temperature=0.9 * (j % 2), seed=j, ignore_eos=True
            ),
            arrival_step=j,
        )
        for j in range(6)
    ]
    alone = [tokens_of(run_jobs(make_engine(model), [job]))[0] for job in jobs]
    for chunk in (3, 512):
        engine = make_engine(model, long_prefill_token_threshold=chunk)
        assert tokens_of(run_jobs(engine, jobs)) == alone
