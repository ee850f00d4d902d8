"""lm-eval: tasks of our own over `local-completions`, compared with the offline engine."""

# /// script
# dependencies = ["lm-eval[api]==0.4.13"]
# ///

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from checklist import URL, keep_promises, model_name, post, promise, run_tool

HERE = Path(__file__).parent
RESULTS = Path("lm_eval_results")
TASK_FILES = Path("lm_eval_task")


@cache
def samples_of(task: str, *, batch_size: int = 1) -> list[dict[str, Any]]:
    """What lm-eval logged of each document."""
    results = RESULTS / f"{task}-{batch_size}"
    shutil.rmtree(results, ignore_errors=True)
    shutil.copytree(HERE / TASK_FILES, TASK_FILES, dirs_exist_ok=True)
    options = {
        "model": model_name(),
        "base_url": f"{URL}/v1/completions",
        "tokenizer_backend": "remote",
        "num_concurrent": 8,
        "max_retries": 1,
    }
    run_tool(
        "lm_eval", "run", "--model", "local-completions", "--tasks", task,
        "--model_args", ",".join(f"{name}={value}" for name, value in options.items()),
        "--batch_size", batch_size, "--include_path", TASK_FILES, "--output_path", results,
        "--log_samples",
    )  # fmt: skip
    (file,) = results.rglob(f"samples_{task}_*.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda sample: int(sample["doc_id"]))


def offline(pairs: list[list[str]]) -> list[tuple[float, bool]]:
    """Log likelihood, and whether it was greedy, of each continuation."""
    done = subprocess.run(
        [os.environ["CHAIRLIFT_PYTHON"], str(HERE / "offline_scores.py")],
        input=json.dumps(pairs), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [(score, is_greedy) for score, is_greedy in json.loads(done.stdout)]


def pairs_of(samples: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [arguments["arg_0"], arguments["arg_1"]]
        for sample in samples
        for arguments in sample["arguments"].values()
    ]


def scores_of(samples: list[dict[str, Any]]) -> list[tuple[float, bool]]:
    """What lm-eval made of the server's answers; it logs numbers as texts."""
    return [
        (float(score), str(is_greedy) == "True")
        for sample in samples
        for ((score, is_greedy),) in sample["resps"]
    ]


@promise
def log_likelihoods_are_those_of_the_offline_engine() -> None:
    samples = samples_of("chairlift_facts")
    assert len(samples) == 12
    online, expected = scores_of(samples), offline(pairs_of(samples))
    assert len(online) == 36 and online == expected, list(zip(online, expected, strict=True))
    assert any(is_greedy for _, is_greedy in online) and not all(g for _, g in online)


@promise
def batches_of_token_lists_change_nothing() -> None:
    batched = samples_of("chairlift_facts", batch_size=6)
    assert scores_of(batched) == scores_of(samples_of("chairlift_facts"))


@promise
def the_model_knows_more_than_chance() -> None:
    samples = samples_of("chairlift_facts")
    assert sum(sample["acc"] for sample in samples) >= 8


@promise
def rolling_log_likelihoods_are_those_of_the_offline_engine() -> None:
    samples = samples_of("chairlift_passages")
    texts = [str(sample["target"]) for sample in samples]
    online = [float(sample["resps"][0][0]) for sample in samples]
    assert online == [score for score, _ in offline([["", text] for text in texts])]


@promise
def generations_are_what_the_server_says_itself() -> None:
    samples = samples_of("chairlift_sentences")
    texts = [str(sample["resps"][0][0]) for sample in samples]
    assert not [text for text in texts if "\n" in text or "." in text] and any(texts)
    for sample, text in zip(samples, texts, strict=True):
        prompt = sample["arguments"]["gen_args_0"]["arg_0"]
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "stop": ["\n", "."]}
        answer = post("/v1/completions", {"model": model_name(), **body})
        assert text == answer["choices"][0]["text"]


keep_promises()
