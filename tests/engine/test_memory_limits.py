"""The memory plan against what the process really takes: each case is a process of its own.

The baseline is not subtracted: a plan counts the interpreter, so its whole peak is compared with
the whole process.  The rise above the loaded model is compared as well, because the plan's
allowance for the interpreter could hide what a step takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import chairlift
from chairlift.runner.memory import LOGIT_ROWS
from parity.tiny_checkpoints import make_tiny_checkpoint, tiny_tensors

MIB = 2**20
SLACK = 32 * MIB
"""Python objects of requests and answers, and what the allocator keeps."""
VOCAB_SIZE = 100_000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc"
)

# Runs one engine.  stdin: {"model", "engine": options, "jobs": [[prompt length, params], ...]}.
SCRIPT = """
import json, sys
from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import load_model
from chairlift.sampling_params import SamplingParams

def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

case = json.load(sys.stdin)
asked = EngineConfig(model=case["model"], threads=2, seed=0, **case["engine"])
model = load_model(asked)
load_peak = status("VmHWM")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
loaded = status("VmRSS")
engine = Engine(model, asked)
for index, (length, params) in enumerate(case["jobs"]):
    prompt = [(7 * index + position) % 250 + 2 for position in range(length)]
    engine.add_request(prompt, SamplingParams(ignore_eos=True, **params))
num_finished = num_tokens = num_preemptions = 0
token_ids = {}
while engine.has_unfinished_requests:
    for output in engine.step():
        num_finished += output.finished
        if output.finished:
            num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
            token_ids[output.request_id] = [list(one.token_ids) for one in output.outputs]
plan = model.resolved.memory
print(json.dumps({
    "num_finished": num_finished,
    "num_tokens": num_tokens,
    "token_ids": [token_ids[key] for key in sorted(token_ids)],
    "load_peak": load_peak,
    "loaded": loaded,
    "peak": status("VmHWM"),
    "plan_peak": plan.peak_bytes,
    "plan_work": plan.work_bytes,
    "plan_kv": plan.kv_bytes,
    "plan_kv_tokens": plan.kv_tokens,
}))
"""


def measure(model: Path, engine: dict[str, Any], jobs: list[tuple[int, dict[str, Any]]]) -> Any:
    """Run jobs in a fresh process; what it measured and what it had planned, in bytes."""
    source = Path(chairlift.__file__).parents[1]
    case = {"model": str(model), "engine": engine, "jobs": jobs}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(case),
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose logits outweigh everything else: 0.4 MB a row."""
    folder = tmp_path_factory.mktemp("large_vocabulary")
    make_tiny_checkpoint("llama3", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tiny_tensors("llama3")
    random = np.random.default_rng(0)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = random.standard_normal((VOCAB_SIZE, 64), np.float32) * np.float32(0.05)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_cache_that_is_taken_at_the_start_changes_no_token(large_vocabulary: Path) -> None:
    jobs: list[tuple[int, dict[str, Any]]] = [(40, {"max_tokens": 5, "temperature": 0.0})] * 4
    engine = {"kv_cache_memory": "96MiB", "max_num_seqs": 4, "max_num_batched_tokens": 64}
    as_used = measure(large_vocabulary, engine, jobs)
    at_start = measure(large_vocabulary, {**engine, "preallocate_kv_cache": True}, jobs)
    assert at_start["token_ids"] == as_used["token_ids"] and at_start["num_finished"] == 4
    assert at_start["loaded"] - as_used["loaded"] > 0.9 * at_start["plan_kv"]
    assert at_start["peak"] < at_start["plan_peak"] + SLACK


def largest_batch(num_requests: int, prompt: int) -> list[tuple[int, dict[str, Any]]]:
    """All rows sample with all that costs memory, and prompts are scored too."""
    params = {
        "max_tokens": 3,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 50,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "logprobs": 20,
    }
    scored = {**params, "prompt_logprobs": 20}
    return [(prompt * 8, scored), *[(prompt, params) for _ in range(num_requests - 1)]]


def check_plan(measured: Any, *, logits_bytes: int) -> None:
    rise = measured["peak"] - measured["loaded"]
    assert rise > logits_bytes, "the largest batch was never run: this test proves nothing"
    assert rise < measured["plan_work"] + measured["plan_kv"] + SLACK
    assert measured["peak"] < measured["plan_peak"] + SLACK


def test_b1_logits_of_the_largest_batch_are_inside_the_memory_plan(large_vocabulary: Path) -> None:
    engine = {"kv_cache_memory": "32MiB", "max_num_seqs": 256, "max_num_batched_tokens": 512}
    measured = measure(large_vocabulary, engine, largest_batch(256, prompt=8))
    assert measured["num_finished"] == 256
    check_plan(measured, logits_bytes=LOGIT_ROWS * 4 * VOCAB_SIZE)
    rise = measured["peak"] - measured["loaded"]
    assert rise < 256 * 4 * VOCAB_SIZE, "whole rows of all requests were there at once"


@pytest.mark.real_model
@pytest.mark.timeout(120)
def test_b1_logits_of_the_largest_batch_are_inside_the_memory_plan_of_the_default_model(
    default_model_path: Path,
) -> None:
    engine = {
        "kv_cache_memory": "128MiB",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
        "kernels": "native",  # with their weights a plan that is too careful would show
    }
    measured = measure(default_model_path, engine, largest_batch(64, prompt=8))
    assert measured["num_finished"] == 64
    check_plan(measured, logits_bytes=LOGIT_ROWS * 4 * 49_152)
    assert measured["plan_peak"] - measured["peak"] < 0.25 * measured["plan_peak"], (
        "far too careful"
    )


def test_b1_loading_stays_inside_the_plan(large_vocabulary: Path) -> None:
    """Packing the largest matrix needs it twice; a mapped file counts too while it is read."""
    file_bytes = (large_vocabulary / "model.safetensors").stat().st_size
    measured = measure(large_vocabulary, {"kv_cache_memory": "16MiB"}, [(4, {"max_tokens": 1})])
    assert measured["load_peak"] < measured["plan_peak"] + file_bytes + SLACK


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with 24 KiB of keys and values per token."""
    folder = tmp_path_factory.mktemp("wide_heads")
    make_tiny_checkpoint("llama3", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"head_dim": 256, "num_key_value_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tiny_tensors("llama3")
    random = np.random.default_rng(0)
    for name in tensors:
        if "_proj" in name and "self_attn" in name:
            shape = (64, 1024) if "o_proj" in name else (1024, 64)
            tensors[name] = random.standard_normal(shape, np.float32) * np.float32(0.1)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_b5_kv_cache_memory_bounds_the_pool(wide_heads: Path) -> None:
    """Requests that want ten times the pool: they take turns, and memory stays flat."""
    engine = {
        "kv_cache_memory": "12MiB",
        "swap_space": 0,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
    }
    jobs = [(100 + index, {"max_tokens": 10, "temperature": 0.0}) for index in range(40)]
    measured = measure(wide_heads, engine, jobs)
    assert measured["num_finished"] == 40 and measured["num_tokens"] == 40 * 10
    assert measured["plan_kv"] == 12 * MIB
    bound = 12 * MIB + measured["plan_work"] + SLACK
    wanted_bytes = 24 * 1024 * sum(length + 10 for length, _ in jobs)
    assert wanted_bytes > 9 * 12 * MIB and wanted_bytes > bound
    assert 12 * MIB < measured["peak"] - measured["loaded"] < bound
    assert measured["peak"] < measured["plan_peak"] + SLACK


def test_b5_a_swap_file_does_not_grow_memory_beyond_the_plan(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Swapped blocks lie in the file; the pages of it that are mapped are bounded by its size."""
    engine = {
        "kv_cache_memory": "1MiB",
        "swap_space": 8 / 1024,
        "swap_path": str(tmp_path),
        "preemption_mode": "swap",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 256,
    }
    jobs = [(100 + index, {"max_tokens": 30, "temperature": 0.0}) for index in range(40)]
    measured = measure(tiny_folder("llama3"), engine, jobs)
    assert measured["num_finished"] == 40 and measured["num_tokens"] == 40 * 30
    assert measured["peak"] < measured["plan_peak"] + 8 * MIB + SLACK
    assert list(tmp_path.iterdir()) == []
