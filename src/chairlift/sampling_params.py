"""How one request wants its tokens chosen: names, meaning and defaults as in vLLM.

A frozen value object that validates itself; it knows nothing of models.  What depends on the
vocabulary or the context length is checked by the input processor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from chairlift.errors import RequestError
from chairlift.structured_outputs import StructuredOutputsParams

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy: dividing by less only overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request.  Raises `RequestError`, naming the field, on a bad value."""

    n: int = 1
    """How many completions of the prompt."""
    temperature: float = 1.0
    """0 is greedy; otherwise logits are divided by it."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; (0, 1]."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the best; [0, 1]."""
    repetition_penalty: float = 1.0
    """> 1 discourages tokens of the prompt and the output (Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Subtracted once from every token already in the output; [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output; [-2, 2]."""
    seed: int | None = None
    """Fixes the text of a sampled request, in whatever company it runs."""
    stop: Sequence[str] = ()
    """The text ends before the first of these."""
    stop_token_ids: Sequence[int] = ()
    """The output ends with the first of these."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Go on past the model's end tokens."""
    min_tokens: int = 0
    """No end token and no stop string before this many tokens."""
    max_tokens: int | None = 16
    """At most this many output tokens; None: as many as the context holds."""
    logprobs: int | None = None
    """Log probabilities of the chosen token and of this many best ones, per output token."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens; each in [-100, 100]."""
    bad_words: Sequence[str] = ()
    """Texts whose last token is forbidden once the others have been generated."""
    allowed_token_ids: Sequence[int] | None = None
    """Nothing but these may be generated."""
    structured_outputs: StructuredOutputsParams | None = None
    """A schema, a regular expression, choices or a grammar that the text must match."""
    skip_special_tokens: bool = True
    kept_special_token_ids: Sequence[int] = ()
    """Special tokens that stay in the text all the same, such as those that mark a call."""
    detokenize: bool = True
    """False: outputs carry token ids only, and `stop` strings are refused."""

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # a frozen value normalises itself here and nowhere else
        if isinstance(self.stop, str):
            set_(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "bad_words", "kept_special_token_ids"):
            value = getattr(self, name)
            set_(self, name, () if value is None else _sequence(name, value))
        if self.allowed_token_ids is not None:
            set_(self, "allowed_token_ids", _sequence("allowed_token_ids", self.allowed_token_ids))
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping):
            raise RequestError("logit_bias must map token ids to numbers", field="logit_bias")
        set_(self, "logit_bias", MappingProxyType(dict(_bias_items(bias))))
        self._check_counts()
        self._check_shape_of_distribution()
        self._check_penalties()
        self._check_stops()
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise RequestError(
                "structured_outputs must be StructuredOutputsParams, got"
                f" {type(self.structured_outputs).__name__}",
                field="structured_outputs",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles by its values: a read-only mapping can do neither by itself."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return _restore, ({**values, "logit_bias": dict(self.logit_bias)},)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def _check_counts(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must not exceed max_tokens: {self.min_tokens} > {self.max_tokens}",
                field="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.n > 1 and self.is_greedy:
            raise RequestError(
                f"n must be 1 with greedy sampling (temperature 0), got {self.n}", field="n"
            )

    def _check_shape_of_distribution(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be above 0 and at most 1, got 0", field="top_p")
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)

    def _check_penalties(self) -> None:
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf)
        if self.repetition_penalty == 0.0:
            raise RequestError("repetition_penalty must be above 0", field="repetition_penalty")
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}",
                field="stop",
            )
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not isinstance(text, str) or not text or len(text) > MAX_STOP_LENGTH:
                    raise RequestError(
                        f"{name} takes strings of 1 to {MAX_STOP_LENGTH} characters", field=name
                    )
        for name in ("stop_token_ids", "kept_special_token_ids"):
            for token_id in getattr(self, name):
                _integer(name, token_id, 0, 2**31 - 1)
        for token_id in self.allowed_token_ids or ():
            _integer("allowed_token_ids", token_id, 0, 2**31 - 1)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must not be empty", field="allowed_token_ids")
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True", field="stop")
        for name in (
            "include_stop_str_in_output",
            "ignore_eos",
            "skip_special_tokens",
            "detokenize",
        ):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", field=name)


def _restore(values: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**values)


def _sequence(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        raise RequestError(f"{name} must be a list", field=name)
    # A set has no order of its own; the text of an item serves, whatever the items are.
    return tuple(sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value)


def _bias_items(bias: Mapping[Any, Any]) -> list[tuple[int, float]]:
    return [(_token_id(key), _number("logit_bias", bias[key], -100.0, 100.0)) for key in bias]


def _token_id(key: object) -> int:
    """JSON keys arrive as strings."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        key = int(key)
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < 2**31:
        raise RequestError(
            f"logit_bias has a key that is no token id: {key!r:.80}", field="logit_bias"
        )
    return key


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {value!r:.80}", field=name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, got {value}", field=name)
    return value


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, got {value!r:.80}", field=name)
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{name} must be a finite number, got {number}", field=name)
    if not low <= number <= high:
        limit = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise RequestError(f"{name} must be {limit}, got {number:g}", field=name)
    return number
