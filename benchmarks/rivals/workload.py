"""What every engine is asked to do: prompts of random token ids, and how many tokens to add.

Standard library only: it runs in the interpreter of each engine.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass

NAMED = {
    "1x512/128": "1:512:128",
    "1x16/256": "1:16:256",
    "32x512/128": "32:512:128",
    "128x512/128": "128:512:128",
    "128x16/256": "128:16:256",
    "100x128/32-512": "100:128:32-512",
    "100x128/16-1024": "100:128:16-1024",
}
LOWEST_ID, HIGHEST_ID = 256, 47_999
MAX_MODEL_LEN = 2048
MAX_SEQS = 128


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    num_tokens: int


def jobs_of(workload: str) -> list[Job]:
    """A name of `NAMED`, or count:input:output with output a number or LOW-HIGH.

    The same jobs at every call; no two prompts share a prefix but by chance.
    """
    count, length, output = NAMED.get(workload, workload).split(":")
    low, _, high = output.partition("-")
    numbers = random.Random(f"jobs of {count}:{length}:{output}")
    return [
        Job(
            [numbers.randint(LOWEST_ID, HIGHEST_ID) for _ in range(int(length))],
            numbers.randint(int(low), int(high or low)),
        )
        for _ in range(int(count))
    ]


def warm_up_of(jobs: list[Job]) -> list[Job]:
    """A quarter of the jobs with other prompts: kernels get compiled, no cache is filled."""
    return [
        Job([LOWEST_ID + HIGHEST_ID - token for token in job.prompt], job.num_tokens)
        for job in jobs[: max(1, len(jobs) // 4)]
    ]


def num_threads() -> int:
    return int(os.environ.get("RIVALS_THREADS", len(os.sched_getaffinity(0))))


def report(engine: str, settings: str, jobs: list[Job], seconds: float, produced: int) -> None:
    """One JSON line.  Raises if the engine cut a request short: its figure would be no figure."""
    asked = sum(job.num_tokens for job in jobs)
    if produced != asked:
        raise RuntimeError(f"{engine} produced {produced} tokens of {asked}")
    row = {
        "engine": engine,
        "settings": settings,
        "seconds": seconds,
        "output_tokens_per_s": produced / seconds,
        "prompt_tokens": sum(len(job.prompt) for job in jobs),
    }
    print("ROW " + json.dumps(row), flush=True)
