"""What a caller gets back: names and meaning as in vLLM."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DEADLINE = "deadline"
"""`stop_reason` of a request that ended because its time was up."""


class TokenLogprob(NamedTuple):
    """One token's log probability, before any sampling option was applied."""

    token_id: int
    logprob: float
    rank: int
    """1 is the most likely token."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The chosen token of one position and the best ones beside it."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log probability with its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt, so far or whole."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    """None while it runs; then "stop", "length", "abort" or "error"."""
    stop_reason: int | str | None = None
    """The stop string or stop token that ended it; None for an end token of the model.
    `DEADLINE` where an abort came from the request's own deadline."""
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds on the engine's clock."""

    arrival_time: float = 0.0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    """Of an embedding: when its vector was there."""
    last_token_time: float | None = None
    finished_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    """When each token of the first completion was handed over."""
    num_preemptions: int = 0
    preempted_s: float = 0.0
    """Time that its completions spent off the batch again, added up."""

    @property
    def time_to_first_token_s(self) -> float | None:
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time

    @property
    def queue_s(self) -> float | None:
        """From arrival until it got on for the first time."""
        return _difference(self.first_scheduled_time, self.arrival_time)

    @property
    def prefill_s(self) -> float | None:
        """From getting on until the first token."""
        return _difference(self.first_token_time, self.first_scheduled_time)

    @property
    def decode_s(self) -> float | None:
        """From the first token until the last."""
        return _difference(self.last_token_time, self.first_token_time)


def _difference(end_s: float | None, start_s: float | None) -> float | None:
    return None if end_s is None or start_s is None else end_s - start_s


@dataclass(slots=True)
class RequestOutput:
    """A request's prompt and its completions."""

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """One entry per prompt token; None for the first, which nothing precedes."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    embedding: array[float] | None = None
    """The prompt's vector (float32), where that was asked for: its completion stays empty."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's vector."""

    vector: array[float]
    """float32, which numpy reads in place: `numpy.frombuffer(vector, numpy.float32)`."""

    @property
    def embedding(self) -> list[float]:
        return self.vector.tolist()

    @property
    def hidden_size(self) -> int:
        return len(self.vector)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """A request's prompt and its vector."""

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: EmbeddingOutput
    """Empty if the request ended with an error."""
    finished: bool = True
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    error: str | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    @classmethod
    def of(cls, output: RequestOutput) -> EmbeddingRequestOutput:
        """A finished output in the shape of an embedding's."""
        vector = output.embedding if output.embedding is not None else array("f")
        return cls(
            request_id=output.request_id,
            prompt=output.prompt,
            prompt_token_ids=output.prompt_token_ids,
            outputs=EmbeddingOutput(vector),
            finished=output.finished,
            num_cached_tokens=output.num_cached_tokens,
            error=output.outputs[0].error,
            metrics=output.metrics,
        )
