"""Makes the parity fixtures: what Hugging Face transformers computes in float32.

Run by hand from the repository root, in an environment with torch, transformers, gguf, tokenizers
and safetensors (extras `parity` and `test`); README.md beside this file lists the versions used.
With PYTHONPATH=tests, four modes:

    python -m parity.make_fixtures smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
        32 prompts, up to 64 greedy tokens each -> fixtures/smollm2_greedy.json (about 2 minutes)
    python -m parity.make_fixtures tiny
        logits of the tiny random checkpoints -> fixtures/tiny_logits.npz (seconds)
    python -m parity.make_fixtures embeddings
        their pooled hidden states -> fixtures/tiny_embeddings.npz (seconds)
    python -m parity.make_fixtures verify [--gguf FILE]
        recompute and compare with the committed files; exit code 1 if they differ
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.gguf_llama import GgufLlama
from parity.parity_fixtures import (
    GreedyFixture,
    GreedySample,
    TinyEmbeddings,
    TinyFixture,
    TinyLogits,
    load_embeddings,
    load_greedy,
    load_tiny,
    save_embeddings,
    save_greedy,
    save_tiny,
)
from parity.prompts import PROMPTS, Messages
from parity.tiny_checkpoints import (
    VARIANTS,
    VOCAB_SIZE,
    fingerprint,
    make_tiny_checkpoint,
    tiny_tensors,
)

NUM_OUTPUT_TOKENS = 64
NUM_INPUT_TOKENS = 96
POSITIONS = np.arange(2, NUM_INPUT_TOKENS, 3)  # every third, the last position among them
EMBEDDED_LENGTHS = np.array([1, 7, 33, NUM_INPUT_TOKENS])
TINY_TOLERANCE = 1e-4  # logits spread over several units
TIE_MARGIN = 1e-3  # below it, another machine's rounding may choose another token
FIRST_ORDINARY_TOKEN_ID = 2

SANITY_TEXT = (
    "The sun is a star at the centre of the solar system. The Earth and the other planets move "
    "around it, and the light of the sun takes about eight minutes to reach the Earth."
)
# Measured: 9.5 is right, 20.8 with the q and k rows left in the file's order.  Too coarse to show
# a wrong RoPE base (10.2 at 10000 for 100000), which is read from the file as it stands.
SANITY_PERPLEXITY = 15.0


def greedy_fixture(path: Path) -> GreedyFixture:
    """Greedy continuations of all prompts by the GGUF file's model.

    Raises:
        ValueError: the model does not write plausible English, so the file was read wrongly.
    """
    import torch

    source = GgufLlama(path)
    model, tokenizer = source.build_model(), source.build_tokenizer()
    perplexity = _perplexity(model, tokenizer, SANITY_TEXT)
    print(f"perplexity of plain English: {perplexity:.2f}")
    if perplexity > SANITY_PERPLEXITY:
        raise ValueError(f"perplexity {perplexity:.1f} > {SANITY_PERPLEXITY}: weights misread?")
    samples = []
    for index, (name, messages) in enumerate(PROMPTS.items(), start=1):
        with torch.inference_mode():
            sample = _greedy_sample(model, tokenizer, source.eos_token_id, name, messages)
        samples.append(sample)
        print(f"{index}/{len(PROMPTS)} {name}: {sample.text!r}", flush=True)
    meta = {
        **_versions("torch", "transformers", "gguf", "tokenizers", "numpy"),
        "model": path.name,
        "sha256": _sha256(path),
        "dtype": "float32",
        "attn_implementation": "eager",
        "max_tokens": NUM_OUTPUT_TOKENS,
        "eos_token_id": source.eos_token_id,
    }
    return GreedyFixture(meta=meta, samples=samples)


def tiny_fixture() -> TinyFixture:
    """Logits of every tiny checkpoint on one sequence of token ids."""
    variants = {}
    for index, name in enumerate(VARIANTS):
        rng = np.random.Generator(np.random.PCG64(7000 + index))
        token_ids = rng.integers(FIRST_ORDINARY_TOKEN_ID, VOCAB_SIZE, NUM_INPUT_TOKENS)
        logits = tiny_logits(name, token_ids)
        variants[name] = TinyLogits(
            token_ids=token_ids,
            positions=POSITIONS,
            logits=logits[POSITIONS],
            fingerprint=fingerprint(tiny_tensors(name)),
        )
        print(f"{name}: logits std {logits.std():.2f}, max {np.abs(logits).max():.2f}", flush=True)
    return TinyFixture(meta=_tiny_meta(), variants=variants)


def tiny_embeddings() -> dict[str, TinyEmbeddings]:
    """Pooled hidden states of every tiny checkpoint, on the token ids of its logits."""
    return {name: variant_embeddings(name) for name in VARIANTS}


def variant_embeddings(variant: str) -> TinyEmbeddings:
    """Of one tiny checkpoint, computed by transformers; means in float64."""
    token_ids = load_tiny().variants[variant].token_ids
    with tempfile.TemporaryDirectory() as name:
        make_tiny_checkpoint(variant, Path(name))
        states = [folder_states(Path(name), token_ids[:length]) for length in EMBEDDED_LENGTHS]
    return TinyEmbeddings(
        lengths=EMBEDDED_LENGTHS,
        last=np.stack([rows[-1] for rows in states]),
        mean=np.stack([rows.mean(axis=0, dtype=np.float64) for rows in states]).astype(np.float32),
    )


def folder_states(folder: Path, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """[tokens, hidden] after the final norm, of the checkpoint in `folder`."""
    import torch

    model = _load(folder)
    with torch.inference_mode():
        output = model(torch.from_numpy(token_ids)[None], output_hidden_states=True)
    array: NDArray[np.float32] = output.hidden_states[-1][0].numpy()
    return array


def _tiny_meta() -> dict[str, Any]:
    return {
        **_versions("torch", "transformers", "safetensors", "numpy"),
        "dtype": "float32",
        "attn_implementation": "eager",
    }


def tiny_logits(variant: str, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """[tokens, vocab] logits of a tiny checkpoint, computed by transformers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tiny_checkpoint(variant, folder)
        return folder_logits(folder, token_ids)


def folder_logits(folder: Path, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """[tokens, vocab] logits of the checkpoint in `folder`, float32, eager attention.

    Raises:
        ValueError: the folder lacks a tensor of the model, or has one too many.
    """
    import torch

    model = _load(folder)
    with torch.inference_mode():
        logits = model(torch.from_numpy(token_ids)[None]).logits[0]
    array: NDArray[np.float32] = logits.numpy()
    return array


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        raise ValueError(f"{folder.name}: transformers did not load it cleanly: {wrong}")
    return model.eval()


def tiny_differences(computed: TinyFixture, committed: TinyFixture) -> list[str]:
    """One line per variant that differs by more than `TINY_TOLERANCE`; none if all agree."""
    if computed.variants.keys() != committed.variants.keys():
        return [f"variants differ: {sorted(computed.variants)} != {sorted(committed.variants)}"]
    lines = []
    for name, theirs in committed.variants.items():
        ours = computed.variants[name]
        if not np.allclose(ours.fingerprint, theirs.fingerprint, rtol=1e-6, atol=1e-4):
            lines.append(f"{name}: the weights differ, so the logits cannot be compared")
        elif not np.array_equal(ours.token_ids, theirs.token_ids):
            lines.append(f"{name}: the input token ids differ")
        elif (worst := float(np.abs(ours.logits - theirs.logits).max())) > TINY_TOLERANCE:
            lines.append(f"{name}: logits differ by {worst:.2e} > {TINY_TOLERANCE:.0e}")
    return lines


def embedding_differences(
    computed: dict[str, TinyEmbeddings], committed: dict[str, TinyEmbeddings]
) -> list[str]:
    """One line per variant whose vectors differ by more than `TINY_TOLERANCE`."""
    if computed.keys() != committed.keys():
        return [f"variants differ: {sorted(computed)} != {sorted(committed)}"]
    lines = []
    for name, theirs in committed.items():
        ours = computed[name]
        worst = max(np.abs(ours.last - theirs.last).max(), np.abs(ours.mean - theirs.mean).max())
        if worst > TINY_TOLERANCE:
            lines.append(f"{name}: embeddings differ by {worst:.2e} > {TINY_TOLERANCE:.0e}")
    return lines


def greedy_differences(computed: GreedyFixture, committed: GreedyFixture) -> list[str]:
    """One line per sample that differs; a choice at a near-tie may differ, with all after it."""
    if computed.meta["sha256"] != committed.meta["sha256"]:
        return ["the GGUF file is not the one of the fixture (SHA-256 differs)"]
    if len(computed.samples) != len(committed.samples):
        return [f"{len(computed.samples)} samples against {len(committed.samples)}"]
    lines = []
    for ours, theirs in zip(computed.samples, committed.samples, strict=True):
        if (ours.name, ours.prompt_token_ids) != (theirs.name, theirs.prompt_token_ids):
            lines.append(f"{theirs.name}: the prompt's token ids differ")
        elif (step := _first_difference(ours.token_ids, theirs.token_ids)) is not None and (
            step >= len(theirs.margins) or theirs.margins[step] > TIE_MARGIN
        ):
            lines.append(f"{theirs.name}: output token {step} differs and is no tie")
    return lines


def _first_difference(ours: list[int], theirs: list[int]) -> int | None:
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _greedy_sample(
    model: Any, tokenizer: Any, eos_token_id: int, name: str, messages: Messages
) -> GreedySample:
    import torch
    from transformers import DynamicCache

    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt_token_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    token_ids: list[int] = []
    margins: list[float] = []
    logprobs: list[float] = []
    cache = DynamicCache(config=model.config)
    step_ids = torch.tensor([prompt_token_ids])
    while len(token_ids) < NUM_OUTPUT_TOKENS:
        logits = model(step_ids, cache=cache, use_cache=True).logits[0, -1].double()
        token_id = int(logits.argmax())
        best, second = logits.topk(2).values.tolist()
        token_ids.append(token_id)
        margins.append(round(best - second, 5))
        logprob = float(logits.log_softmax(-1)[token_id])
        logprobs.append(round(logprob, 5) + 0.0)  # no -0.0
        if token_id == eos_token_id:
            break
        step_ids = torch.tensor([[token_id]])
    return GreedySample(
        name=name,
        prompt_text=prompt,
        prompt_token_ids=prompt_token_ids,
        token_ids=token_ids,
        margins=margins,
        logprobs=logprobs,
        text=tokenizer.decode(token_ids, skip_special_tokens=True),
    )


def _perplexity(model: Any, tokenizer: Any, text: str) -> float:
    import torch

    token_ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        logprobs = model(token_ids).logits[0, :-1].log_softmax(-1)
    chosen = logprobs.gather(1, token_ids[0, 1:, None])
    return float(torch.exp(-chosen.mean()))


def _versions(*packages: str) -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(gguf: Path | None) -> int:
    lines = tiny_differences(tiny_fixture(), load_tiny())
    lines += embedding_differences(tiny_embeddings(), load_embeddings())
    if gguf is not None:
        lines += greedy_differences(greedy_fixture(gguf), load_greedy())
    for line in lines:
        print(f"DIFFERS {line}")
    print("differences found" if lines else "the fixtures agree with what transformers computes")
    return 1 if lines else 0


def main() -> int:
    """Parse the command line and run one mode; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("smollm2").add_argument("gguf", type=Path)
    modes.add_parser("tiny")
    modes.add_parser("embeddings")
    modes.add_parser("verify").add_argument("--gguf", type=Path)
    arguments = parser.parse_args()
    if arguments.mode == "verify":
        return _verify(arguments.gguf)
    if arguments.mode == "smollm2":
        save_greedy(greedy_fixture(arguments.gguf))
    elif arguments.mode == "embeddings":
        save_embeddings(tiny_embeddings(), _tiny_meta())
    else:
        save_tiny(tiny_fixture())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
