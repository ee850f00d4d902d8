"""Choosing tokens while the output head computes, against choosing from whole rows of logits.

    python benchmarks/sampling.py [--model smollm2] [--kernels int8 native] [--rows 1 32 128]

Hidden states come from the model reading a text.  Three things take turns, and the best of some
rounds counts: the head alone (all logits written), the head and numpy on whole rows, and the head
with an epilogue that leaves candidates.  Tokens of the last two must be equal.  Times are
milliseconds for all rows together; `beyond` is what sampling adds to the head alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chairlift.config import EngineConfig
from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.kernels.interface import FloatArray
from chairlift.runner.forward_batch import build_layout
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.model_runner import HiddenRows
from chairlift.runner.sampler import Sampler, SamplerOutput
from chairlift.sampling_params import SamplingParams

TEXT = Path(__file__).parents[1] / "tests" / "data" / "public_domain_text.txt"
CONTEXT = 512
CASES: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "temperature 0.8": [{"temperature": 0.8}],
    "0.8, top_p 0.95": [{"temperature": 0.8, "top_p": 0.95}],
    "0.8, top_k 50": [{"temperature": 0.8, "top_k": 50}],
    "0.8, top_k 50, top_p 0.95": [{"temperature": 0.8, "top_k": 50, "top_p": 0.95}],
    "0.8, min_p 0.05": [{"temperature": 0.8, "min_p": 0.05}],
    "greedy, min_tokens": [{"temperature": 0.0, "min_tokens": 9}],
    "greedy, penalties": [{"temperature": 0.0, "repetition_penalty": 1.1}],
    "a quarter each of the first four": [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 0.8, "top_k": 50},
    ],
    "greedy, one row with logprobs": [{"temperature": 0.0, "logprobs": 5}],
}


def read_text(model: LoadedModel) -> tuple[list[int], FloatArray]:
    """Token ids and hidden states of a context's worth of the text."""
    text = TEXT.read_text(encoding="utf-8")
    token_ids = model.tokenizer.encode(text, add_special_tokens=False)[:CONTEXT]
    block_size = model.resolved.memory.block_size
    blocks = range(-(-CONTEXT // block_size))
    layout = build_layout([ScheduledRequest("", "prefill", 0, CONTEXT, blocks, False)], block_size)
    ids = np.array(token_ids, dtype=np.int32)
    return token_ids, model.runner.model.forward(ids, layout, model.runner.kv_cache.blocks)


def make_states(
    options: list[dict[str, Any]], token_ids: list[int], count: int, vocab_size: int
) -> list[RequestSamplingState]:
    """States in turn by `options`; greedy without logprobs beyond a list of one with them."""
    states = []
    for row in range(count):
        chosen = options[row % len(options)]
        if "logprobs" in chosen and row > 0:
            chosen = {"temperature": 0.0}
        params = SamplingParams(max_tokens=None, **chosen)
        states.append(
            RequestSamplingState(
                token_ids, params, stop_token_ids=(0, 2), vocab_size=vocab_size, seed=row
            )
        )
    return states


def best_of(calls: dict[str, Callable[[], Any]], budget_s: float) -> dict[str, float]:
    """The shortest of at least three calls of each, in turns, until the budget is spent."""
    best = dict.fromkeys(calls, float("inf"))
    stop, rounds = time.perf_counter() + budget_s, 0
    while rounds < 3 or time.perf_counter() < stop:
        rounds += 1
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure(model: LoadedModel, row_counts: list[int], budget_s: float) -> None:
    token_ids, hidden = read_text(model)
    decoder = model.runner.model
    print(f"{'':34}{'rows':>5}{'head':>9}{'whole':>9}{'here':>9}{'beyond: whole':>15}{'here':>9}")
    for name, options in CASES.items():
        for count in row_counts:
            rows = np.linspace(CONTEXT // 8, CONTEXT - 1, count).astype(np.int32)
            head = HiddenRows(decoder, hidden, rows)
            states = make_states(options, token_ids, count, decoder.config.vocab_size)
            assert sample_here(head, states) == sample_whole(head, states), "the routes disagree"
            times = best_of(
                {
                    "head": partial(head.logits, range(count)),
                    "whole": partial(sample_whole, head, states),
                    "here": partial(sample_here, head, states),
                },
                budget_s,
            )
            ms = {part: 1e3 * seconds for part, seconds in times.items()}
            print(
                f"{name:34}{count:5}{ms['head']:9.2f}{ms['whole']:9.2f}{ms['here']:9.2f}"
                f"{ms['whole'] - ms['head']:15.2f}{ms['here'] - ms['head']:9.2f}",
                flush=True,
            )


def sample_whole(head: HiddenRows, states: list[RequestSamplingState]) -> SamplerOutput:
    return Sampler().sample_logits(head.logits(range(len(states))), states)


def sample_here(head: HiddenRows, states: list[RequestSamplingState]) -> SamplerOutput:
    return Sampler().sample(head, states)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kernels", nargs="+", default=["int8", "native"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    arguments = parser.parse_args()
    for name in arguments.kernels:
        asked = EngineConfig(
            model=arguments.model, kernels=name, threads=arguments.threads, swap_space=0.0
        )
        print(f"kernels {name}")
        measure(load_model(asked), arguments.rows, arguments.seconds)


if __name__ == "__main__":
    main()
