"""The workload of `chairlift bench throughput` and `latency`, and a model loaded for it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from chairlift.bench.length_range import LengthRange
from chairlift.bench.workload import BenchRequest, random_workload
from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.errors import ConfigError

MAX_NUM_SEQS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPrompts:
    """So many requests with prompts of random tokens, all there at the start.

    End tokens are ignored: the lengths are exact.
    """

    num_prompts: int
    input_len: LengthRange
    output_len: LengthRange
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise ConfigError(
                f"num_prompts must be at least 1, got {self.num_prompts}", field="num_prompts"
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest request that may be drawn."""
        return self.input_len.high + self.output_len.high

    def requests(self, vocab_size: int) -> tuple[BenchRequest, ...]:
        """The same ones every time."""
        return random_workload(
            vocab_size,
            num_requests=self.num_prompts,
            input_tokens=(self.input_len.low, self.input_len.high),
            output_tokens=(self.output_len.low, self.output_len.high),
            seed=self.seed,
        )

    def warm_up(self, vocab_size: int) -> tuple[BenchRequest, ...]:
        """A quarter of the requests, with other prompts."""
        return random_workload(
            vocab_size,
            num_requests=-(-self.num_prompts // 4),
            input_tokens=(self.input_len.low, self.input_len.high),
            output_tokens=(self.output_len.low, self.output_len.high),
            seed=self.seed + 1,
        )


def load_for_prompts(
    asked: EngineConfig, prompts: RandomPrompts, *, max_num_seqs: int, show_download: bool = False
) -> LoadedModel:
    """The model, with memory planned for these requests where nothing else was asked for.

    Raises `ConfigError`, naming the lengths, if they do not fit its context.
    """
    is_chosen = asked.max_model_len is not None
    if asked.max_model_len is not None and asked.max_model_len < prompts.longest:
        raise _too_long(prompts, f"max_model_len is {asked.max_model_len}")
    planned = dataclasses.replace(
        asked,
        max_model_len=asked.max_model_len or prompts.longest,
        max_num_seqs=asked.max_num_seqs or max_num_seqs,
    )
    try:
        return load_model(planned, show_download=show_download)
    except ConfigError as error:
        if is_chosen or error.field != "max_model_len":
            raise
        raise _too_long(prompts, str(error)) from None


def fresh_engine(model: LoadedModel, asked: EngineConfig) -> Engine:
    """An engine that remembers no earlier one on the same model.  One at a time."""
    return Engine(dataclasses.replace(model, cost=dataclasses.replace(model.cost)), asked)


def _too_long(prompts: RandomPrompts, why: str) -> ConfigError:
    return ConfigError(
        f"input_len {prompts.input_len} and output_len {prompts.output_len} make requests of"
        f" {prompts.longest} tokens: {why}",
        field="input_len",
    )
