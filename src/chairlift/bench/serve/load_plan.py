"""From what was asked to the bytes that will be sent.  A seed fixes them all.

Each request draws from a random generator of its own, so that request 7 is the same however many
there are and however fast they come.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from chairlift.bench.serve.arrivals import arrival_times
from chairlift.bench.serve.dataset_file import read_dataset
from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.planned_request import PlannedRequest, request_body
from chairlift.bench.serve.prompt_form import Part, Prompt, PromptForm
from chairlift.bench.serve.trace_file import TraceRequest, read_trace
from chairlift.errors import ConfigError

NUM_PROMPTS = 1000
NUM_OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Draft:
    """A request before it is bytes."""

    prompt: Prompt
    num_output_tokens: int
    arrival_s: float | None = None
    """That a trace gives it."""


def plan_requests(config: LoadConfig, model: str, form: PromptForm) -> list[PlannedRequest]:
    """In the order in which they are sent.  Raises `ConfigError` about a file."""
    drafts = _drafts(config, form)
    rate = float("inf") if config.request_rate is None else config.request_rate
    arrivals = arrival_times(len(drafts), rate, config.burstiness, config.seed)
    return [
        PlannedRequest(
            index=index,
            body=request_body(config, model, draft.prompt, draft.num_output_tokens),
            arrival_s=(draft.arrival_s or 0.0) if config.is_self_timed else arrival_s,
            num_output_tokens=draft.num_output_tokens,
        )
        for index, (draft, arrival_s) in enumerate(zip(drafts, arrivals, strict=True))
    ]


def warmup_bodies(config: LoadConfig, model: str, form: PromptForm, count: int) -> list[bytes]:
    """Requests like the measured ones, with prompts that none of them has."""
    bodies = []
    for index in range(count):
        rng = random.Random(f"{config.seed}:warmup:{index}")
        length = min(config.input_lengths.draw(rng), 1024)
        prompt = form.join([form.draw(rng, form.own_tokens(length))])
        output = (config.output_lengths.draw(rng)) if config.output_lengths else NUM_OUTPUT_TOKENS
        bodies.append(request_body(config, model, prompt, output))
    return bodies


def _drafts(config: LoadConfig, form: PromptForm) -> list[Draft]:
    if config.dataset_name == "random":
        count = NUM_PROMPTS if config.num_prompts is None else config.num_prompts
        return [_random_draft(config, form, index) for index in range(count)]
    assert config.dataset_path is not None
    if config.dataset_name == "timed_trace":
        rows = read_trace(
            config.dataset_path,
            seconds_per_unit=config.timed_trace_sec_multiplier,
            tokens_per_hash=config.timed_trace_chunk_hash_size,
        )
        rows = rows[: _file_count(config, len(rows))]
        return [_trace_draft(config, form, index, row) for index, row in enumerate(rows)]
    texts = read_dataset(config.dataset_path, config.dataset_name)
    random.Random(f"{config.seed}:order").shuffle(texts)
    texts = texts[: _file_count(config, len(texts))]
    return [
        Draft(text.prompt, _output_tokens(config, index, text.num_output_tokens))
        for index, text in enumerate(texts)
    ]


def _file_count(config: LoadConfig, available: int) -> int:
    """How many requests of a file to take."""
    if config.num_prompts is None:
        return min(available, NUM_PROMPTS)
    if config.num_prompts > available:
        raise ConfigError(
            f"num_prompts is {config.num_prompts}, and {config.dataset_path} has {available}",
            field="num_prompts",
        )
    return config.num_prompts


def _output_tokens(config: LoadConfig, index: int, from_file: int | None) -> int:
    """What the options say, else what the file says."""
    if config.output_lengths is not None:
        return config.output_lengths.draw(random.Random(f"{config.seed}:output:{index}"))
    return NUM_OUTPUT_TOKENS if from_file is None else from_file


def _random_draft(config: LoadConfig, form: PromptForm, index: int) -> Draft:
    rng = random.Random(f"{config.seed}:prompt:{index}")
    length = config.input_lengths.draw(rng)
    parts: list[Part] = []
    if config.shared_prefix_len:
        prefix = rng.randrange(config.num_prefixes)
        shared = random.Random(f"{config.seed}:prefix:{prefix}")
        parts.append(form.draw(shared, config.shared_prefix_len))
    parts.append(form.draw(rng, form.own_tokens(length)))
    return Draft(form.join(parts), _output_tokens(config, index, None))


def _trace_draft(config: LoadConfig, form: PromptForm, index: int, row: TraceRequest) -> Draft:
    size = config.timed_trace_chunk_hash_size
    left = form.own_tokens(row.num_prompt_tokens)
    parts: list[Part] = []
    for hash_id in row.hash_ids[:-1]:
        parts.append(form.draw(random.Random(f"{config.seed}:chunk:{hash_id}"), size))
        left -= size
    # The last chunk may be shorter; without hashes it is the whole prompt.
    last = row.hash_ids[-1] if row.hash_ids else f"of request {index}"
    parts.append(form.draw(random.Random(f"{config.seed}:chunk:{last}"), max(1, left)))
    return Draft(
        prompt=form.join(parts),
        num_output_tokens=_output_tokens(config, index, row.num_output_tokens),
        arrival_s=row.arrival_s,
    )
