"""What is asked of an engine in a benchmark: exact token counts, and when each request comes.

Prompts are cut from one text, so that they are words and yet have any length.  Knows nothing of
engines; a seed fixes everything.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.errors import ConfigError

PROMPT_TEXT = (
    "The chairlift never stops. Seats come down the cable one after another, and at the station "
    "whoever stands at the gate gets on the next free one; at the top everyone gets off at once "
    "and the seat swings round, empty, for the next rider. A cable car works in another way: it "
    "waits until the cabin is full, carries all of its passengers together, and turns back only "
    "when the last of them has left. On a quiet morning nobody sees the difference. On a crowded "
    "day one of the two has a long queue below and empty seats above. The engineer who drew both "
    "of them wrote in her notebook that speed had little to do with it: the rope ran as fast in "
    "either case, and what counted was how many of the places that it carried had somebody in "
    "them. She counted them for a week, in rain and in sunshine, and then she drew a third one. "
)

LONG_EVERY = 8
"""In a mixed workload, one request in so many is a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One request: exact lengths, because end tokens are ignored."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int
    arrival_s: float = 0.0
    """After the start of the run; a closed loop ignores it."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + self.num_output_tokens


def mixed_workload(
    text_token_ids: Sequence[int],
    *,
    num_requests: int,
    max_len: int,
    mean_gap_s: float,
    seed: int,
) -> tuple[BenchRequest, ...]:
    """Short and long prompts and outputs, arriving at random times (a Poisson process).

    Prompts of 16 to 120 tokens and outputs of 8 to 96, one in eight of 128 to 192, all cut to what
    `max_len` tokens of context hold.
    """
    rng = random.Random(seed)
    requests = []
    arrival_s = 0.0
    for index in range(num_requests):
        prompt = min(_log_uniform(rng, 16, 120), max_len // 2)
        is_long = index % LONG_EVERY == LONG_EVERY // 2
        output = rng.randint(128, 192) if is_long else _log_uniform(rng, 8, 96)
        requests.append(
            BenchRequest(
                request_id=str(index),
                prompt_token_ids=_cut(text_token_ids, rng, prompt),
                num_output_tokens=min(output, max_len - prompt),
                arrival_s=arrival_s,
            )
        )
        arrival_s += rng.expovariate(1 / mean_gap_s)
    return tuple(requests)


def uniform_workload(
    text_token_ids: Sequence[int],
    *,
    num_requests: int,
    num_prompt_tokens: int,
    output_tokens: tuple[int, int],
    seed: int,
) -> tuple[BenchRequest, ...]:
    """Prompts of one length, outputs drawn evenly from a range; all are there at the start.

    The same seed draws the same lengths for every number of requests, as far as they go.
    """
    rng = random.Random(seed)
    return tuple(
        BenchRequest(
            request_id=str(index),
            prompt_token_ids=_cut(text_token_ids, rng, num_prompt_tokens),
            num_output_tokens=rng.randint(*output_tokens),
        )
        for index in range(num_requests)
    )


def random_workload(
    vocab_size: int,
    *,
    num_requests: int,
    input_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    seed: int,
) -> tuple[BenchRequest, ...]:
    """Prompts of any tokens, so that none shares a prefix; lengths drawn evenly from ranges.

    The same seed draws the same requests for every number of them, as far as they go.
    """
    rng = random.Random(seed)
    requests = []
    for index in range(num_requests):
        num_prompt_tokens = rng.randint(*input_tokens)
        requests.append(
            BenchRequest(
                request_id=str(index),
                prompt_token_ids=tuple(rng.randrange(vocab_size) for _ in range(num_prompt_tokens)),
                num_output_tokens=rng.randint(*output_tokens),
            )
        )
    return tuple(requests)


def renamed(requests: Sequence[BenchRequest], prefix: str) -> tuple[BenchRequest, ...]:
    """The same requests under other ids."""
    return tuple(
        dataclasses.replace(request, request_id=prefix + request.request_id) for request in requests
    )


def check_fits(requests: Sequence[BenchRequest], max_model_len: int) -> None:
    """Raises `ConfigError` if a request would be cut short."""
    longest = max(request.num_tokens for request in requests)
    if longest > max_model_len:
        raise ConfigError(
            f"scale is too large: the workload has requests of {longest} tokens, and the model's"
            f" context is {max_model_len}",
            field="scale",
        )


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _cut(token_ids: Sequence[int], rng: random.Random, count: int) -> tuple[int, ...]:
    """`count` tokens from somewhere in the text, going round its end."""
    start = rng.randrange(len(token_ids))
    return tuple(itertools.islice(itertools.cycle(token_ids), start, start + count))
