"""`chairlift bench structured`: the same requests with none, half and all of them constrained."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chairlift.bench.random_prompts import RandomPrompts, fresh_engine
from chairlift.bench.run_facts import run_facts
from chairlift.bench.text_table import text_table
from chairlift.bench.workload import BenchRequest
from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import ChairliftError
from chairlift.sampling_params import SamplingParams
from chairlift.structured_outputs import StructuredOutputsParams

SHARES: Final = (0, 50, 100)
"""Percent of the requests that are constrained."""
RECORDS: Final = {
    "type": "array",
    "minItems": 100_000,  # no answer ends before its length: all shares give as many tokens
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "mood": {"enum": ["good", "bad", "indifferent"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
            "address": {
                "type": "object",
                "properties": {
                    "street": {"type": "string", "maxLength": 32},
                    "no": {"type": "integer"},
                },
                "required": ["street"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "age", "mood", "address"],
        "additionalProperties": False,
    },
}
"""What the constrained ones write: objects with texts, numbers, choices, lists."""


@dataclass(frozen=True, slots=True)
class ShareReport:
    """One share of constrained requests, round by round."""

    share: int
    tokens_per_s: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredReport:
    """Everything that was measured."""

    model: LoadedModel
    asked: EngineConfig
    prompts: RandomPrompts
    temperature: float
    shares: tuple[ShareReport, ...]

    def ratio(self, report: ShareReport) -> float:
        """Against none constrained: the median over rounds, whose parts ran side by side."""
        free = self.shares[0].tokens_per_s
        return statistics.median(
            one / other for one, other in zip(report.tokens_per_s, free, strict=True)
        )

    def text(self) -> str:
        return text_table(
            ("constrained", "output tokens/s", "best", "of none constrained"),
            [
                (
                    f"{report.share} %",
                    f"{report.median:.1f}",
                    f"{max(report.tokens_per_s):.1f}",
                    f"{self.ratio(report):.1%}",
                )
                for report in self.shares
            ],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **run_facts(self.model, self.asked),
            "num_requests": self.prompts.num_prompts,
            "input_len": str(self.prompts.input_len),
            "output_len": str(self.prompts.output_len),
            "temperature": self.temperature,
            "seed": self.prompts.seed,
            "shares": {
                str(report.share): {
                    "output_tokens_per_second": list(report.tokens_per_s),
                    "ratio": self.ratio(report),
                }
                for report in self.shares
            },
        }


def measure_structured(
    model: LoadedModel,
    asked: EngineConfig,
    prompts: RandomPrompts,
    *,
    num_rounds: int,
    temperature: float,
    progress: Callable[[str], None] = lambda line: None,
) -> StructuredReport:
    """A warm-up, then rounds in which every share has its turn, forwards and backwards."""
    requests = prompts.requests(model.config.vocab_size)
    engine = fresh_engine(model, asked)  # one for all: its grammars are compiled once
    run_share(engine, prompts.warm_up(model.config.vocab_size), 100, temperature)
    found: dict[int, list[float]] = {share: [] for share in SHARES}
    for index in range(num_rounds):
        for share in SHARES if index % 2 == 0 else reversed(SHARES):
            found[share].append(run_share(engine, requests, share, temperature))
            progress(f"round {index + 1}, {share} %: {found[share][-1]:.1f} output tokens/s")
    return StructuredReport(
        model=model,
        asked=asked,
        prompts=prompts,
        temperature=temperature,
        shares=tuple(ShareReport(share, tuple(found[share])) for share in SHARES),
    )


def run_share(
    engine: Engine, requests: Sequence[BenchRequest], share: int, temperature: float
) -> float:
    """Output tokens per second of all requests at once, `share` percent of them constrained."""
    grammar = StructuredOutputsParams(json=RECORDS)
    for index, request in enumerate(requests):
        is_constrained = (index + 1) * share // 100 > index * share // 100
        params = SamplingParams(
            temperature=temperature,
            seed=index,
            max_tokens=request.num_output_tokens,
            ignore_eos=True,
            structured_outputs=grammar if is_constrained else None,
        )
        engine.add_request(request.prompt_token_ids, params, is_streaming=False)
    start_s = time.perf_counter()
    num_tokens = 0
    while engine.has_unfinished_requests:
        for output in engine.step():
            completion = output.outputs[0]
            if completion.finish_reason != "length":
                raise ChairliftError(
                    f"a request ended by {completion.finish_reason}: {completion.error}"
                )
            num_tokens += len(completion.token_ids)
    return num_tokens / (time.perf_counter() - start_s)
