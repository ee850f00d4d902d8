"""What one request's options do to its row of logits, and the counts they need.

Owns `RequestSamplingState` and the pure steps, each on ONE float32 row.  The order is vLLM's:

```
process_logits   allowed_token_ids, grammar, bad words, min_tokens, logit_bias, repetition penalty,
                 frequency penalty, presence penalty
scale_logits     temperature
kept_token_ids   min_p, top_k, top_p
```

Knows token ids, never text; knows neither other requests nor how a token is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chairlift.errors import RequestError
from chairlift.grammar.token_matcher import MaskArray
from chairlift.kernels.counter_random import stream_base
from chairlift.kernels.interface import FloatArray
from chairlift.runner.list_plan import ListPlan, plan_list
from chairlift.sampling_params import SamplingParams

TokenIdArray = NDArray[np.int64]

_NUM_GROUPS: Final = 1024
_DEPTHS: Final = (4.0, 8.0, 16.0, 32.0)
_FEW_WORDS: Final = 128
_LARGEST: Final = float(np.finfo(np.float32).max)


class TokenCounts:
    """How often each token has been generated; prompt tokens take part with count 0."""

    __slots__ = ("_counts", "_ids", "_size", "_slots")

    def __init__(self, token_ids: Iterable[int]) -> None:
        unique = np.unique(np.fromiter(token_ids, dtype=np.int64))
        self._size = len(unique)
        self._ids: TokenIdArray = unique
        self._counts: FloatArray = np.zeros(self._size, dtype=np.float32)
        self._slots = {token_id: slot for slot, token_id in enumerate(unique.tolist())}

    @property
    def token_ids(self) -> TokenIdArray:
        """[U] distinct tokens: the prompt's, then the others as they came."""
        return self._ids[: self._size]

    @property
    def counts(self) -> FloatArray:
        """[U] occurrences in the output."""
        return self._counts[: self._size]

    def add(self, token_id: int) -> None:
        """O(1), amortised over the doubling of the arrays."""
        slot = self._slots.setdefault(token_id, self._size)
        if slot == self._size:
            if slot == len(self._ids):
                self._ids = np.resize(self._ids, max(16, 2 * slot))
                self._counts = np.resize(self._counts, max(16, 2 * slot))
            self._ids[slot] = token_id
            self._counts[slot] = 0.0
            self._size += 1
        self._counts[slot] += 1.0


class BadWords:
    """Sequences of token ids whose last is forbidden once the others end the output."""

    __slots__ = ("_always", "_by_last", "_longest_prefix", "_tail")

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._always = sorted({word[0] for word in words if len(word) == 1})
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append((list(word[:-1]), word[-1]))
        self._longest_prefix = max((len(word) - 1 for word in words), default=0)
        self._tail: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._always or self._by_last)

    def add(self, token_id: int) -> None:
        self._tail.append(token_id)
        if len(self._tail) > self._longest_prefix:
            del self._tail[0]

    def forbidden(self) -> list[int]:
        """Tokens that must not come next."""
        banned = list(self._always)
        for prefix, last in self._by_last.get(self._tail[-1], ()) if self._tail else ():
            if self._tail[-len(prefix) :] == prefix:
                banned.append(last)
        return banned


class SparseEdits(NamedTuple):
    """Changes to single logits of a row, in this order; arrays as they lie in the state."""

    token_ids: list[TokenIdArray]
    values: list[FloatArray]
    """Added to the logits, minus infinity being a mask; then numbers of occurrences to penalise."""
    num_added: int
    penalties: tuple[float, float, float]
    """Repetition, frequency and presence."""


class RequestSamplingState:
    """One request's options, turned into arrays, and what it has generated so far.

    It survives preemption, and equals a fresh one to which the same tokens were appended.
    """

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_biased",
        "_biases",
        "_counts",
        "_penalties",
        "_stop_ids",
        "_stop_masks",
        "choice",
        "few_allowed",
        "list_plan",
        "mask",
        "num_output_tokens",
        "params",
        "seed",
        "stream_base",
        "temperature",
    )

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        stop_token_ids: Iterable[int],
        bad_word_ids: Sequence[Sequence[int]] = (),
        vocab_size: int,
        seed: int | None = None,
        choice: int = 0,
    ) -> None:
        """`seed` stands for `params.seed` where that is None; only greedy requests need neither.

        `choice` is the index among the `n` completions of a prompt: each has its own noise.
        Raises `RequestError` for a token id that the vocabulary does not have.
        """
        self.params: Final = params
        resolved = params.seed if params.seed is not None else seed
        if resolved is None and not params.is_greedy:
            raise RequestError("a sampled request needs a seed; draw one for it", field="seed")
        self.seed: Final = 0 if resolved is None else resolved
        self.choice: Final = choice
        self.stream_base: Final = stream_base(self.seed, choice)
        self.temperature: Final = divisor_of(params)
        self.list_plan: Final[ListPlan] = plan_list(params, float(self.temperature), vocab_size)
        self.num_output_tokens = 0
        self.mask: MaskArray | None = None
        """Which tokens the request's grammar allows next."""
        self.few_allowed: TokenIdArray | None = None
        """Their ids, if they are few."""
        self._allowed = _ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
        self._biased = _ids("logit_bias", list(params.logit_bias), vocab_size)
        self._biases: FloatArray = np.array(list(params.logit_bias.values()), dtype=np.float32)
        stops = stop_token_ids if params.min_tokens else ()
        self._stop_ids = _ids("stop_token_ids", sorted(stops), vocab_size)
        self._stop_masks: FloatArray = np.full(len(self._stop_ids), -np.inf, dtype=np.float32)
        _ids("bad_words", [token_id for word in bad_word_ids for token_id in word], vocab_size)
        self._bad_words = BadWords(bad_word_ids)
        self._penalties = (
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        self._counts: TokenCounts | None = None
        if params.repetition_penalty != 1.0:
            # A model's head may be narrower than its tokenizer; such ids have no logit to change.
            self._counts = TokenCounts(i for i in prompt_token_ids if 0 <= i < vocab_size)
        elif params.presence_penalty or params.frequency_penalty:
            self._counts = TokenCounts(())

    @property
    def needs_processing(self) -> bool:
        """False: the row of logits would pass `process_logits` unchanged."""
        return self.mask is not None or self.needs_edits

    @property
    def needs_edits(self) -> bool:
        """Something other than a grammar changes the row of logits."""
        return bool(
            len(self._allowed)
            or len(self._biased)
            or self._counts is not None
            or self._bad_words
            or self.is_masking_stops
        )

    @property
    def needs_whole_rows(self) -> bool:
        """True: the token cannot be found without a whole row of logits."""
        is_masked = len(self._allowed) > 0 or (self.mask is not None and self.list_plan.size > 0)
        return self.params.logprobs is not None or is_masked

    def allows(self, token_id: int) -> bool:
        """Whether the grammar, if there is one, lets this token come next."""
        if self.mask is None:
            return True
        return bool(int(self.mask[token_id >> 5]) >> (token_id & 31) & 1)

    @property
    def forced_token(self) -> int | None:
        """The only token that the grammar allows, unless somebody wants to know more of the row."""
        ids = self.few_allowed
        if ids is None or len(ids) != 1 or self.needs_edits or self.params.logprobs is not None:
            return None
        return int(ids[0])

    @property
    def is_masking_stops(self) -> bool:
        """Fewer than min_tokens so far, and there is something to mask."""
        return self.num_output_tokens < self.params.min_tokens and len(self._stop_ids) > 0

    def constrain(self, mask: MaskArray) -> None:
        """What the request's grammar allows at the next position; anew for every position."""
        self.mask, self.few_allowed = mask, few_set_bits(mask)

    def append(self, token_id: int) -> None:
        """Take note of the next output token; O(1)."""
        self.num_output_tokens += 1
        if self._counts is not None:
            self._counts.add(token_id)
        if self._bad_words:
            self._bad_words.add(token_id)

    def edits(self) -> SparseEdits:
        """What `process` does to single tokens; others it leaves alone unless few are allowed."""
        ids, values = [self._biased], [self._biases]
        masked = self._bad_words.forbidden() if self._bad_words else []
        if self.is_masking_stops:
            ids.append(self._stop_ids)
            values.append(self._stop_masks)
        if masked:
            ids.append(np.array(masked, dtype=np.int64))
            values.append(np.full(len(masked), -np.inf, dtype=np.float32))
        num_added = sum(map(len, ids))
        if self._counts is not None:
            ids.append(self._counts.token_ids)
            values.append(self._counts.counts)
        return SparseEdits(ids, values, num_added, self._penalties)

    def process(self, logits: FloatArray) -> FloatArray:
        """See `process_logits`."""
        row = logits.copy() if self.mask is None else self._masked(logits, self.mask)
        if len(self._allowed):
            allowed = row[self._allowed]
            row.fill(-np.inf)
            row[self._allowed] = allowed
        if self._bad_words:
            row[self._bad_words.forbidden()] = -np.inf
        if self.is_masking_stops:
            row[self._stop_ids] = -np.inf
        row[self._biased] += self._biases
        if self._counts is not None:
            apply_penalties(row, self._counts, self.params)
        return row

    def _masked(self, logits: FloatArray, mask: MaskArray) -> FloatArray:
        """A new row [V]: `logits` where the grammar allows them, elsewhere minus infinity."""
        if self.few_allowed is None:
            bits = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
            return np.where(bits.view(np.bool_), logits, np.float32(-np.inf))
        row: FloatArray = np.full(len(logits), -np.inf, dtype=np.float32)
        row[self.few_allowed] = logits[self.few_allowed]
        return row


def process_logits(logits: FloatArray, state: RequestSamplingState) -> FloatArray:
    """A new row [V]: masks, bias and penalties applied to the model's `logits` [V].

    Raises `RequestError` if nothing is left that could be generated.
    """
    row = state.process(logits)
    if not np.isfinite(row.max()):
        grammar = "structured_outputs, " if state.mask is not None else ""
        raise RequestError(
            f"{grammar}allowed_token_ids, bad_words, min_tokens and the penalties together leave no"
            " token that could be generated: relax one of them"
        )
    return row


def few_set_bits(mask: MaskArray) -> TokenIdArray | None:
    """Ascending ids of the tokens whose bits are set; None where too many words have some."""
    words = np.flatnonzero(mask)
    if len(words) > _FEW_WORDS:
        return None
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little")
    places = np.flatnonzero(bits)
    ids: TokenIdArray = words[places >> 5] * 32 + (places & 31)
    return ids


def apply_penalties(row: FloatArray, seen: TokenCounts, params: SamplingParams) -> None:
    """Repetition (Keskar et al. 2019), frequency and presence penalties, in place.

    `seen` holds the prompt's tokens only if there is a repetition penalty, which alone minds them.
    """
    ids, counts = seen.token_ids, seen.counts
    values = row[ids]
    with np.errstate(over="ignore"):
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
        values -= np.float32(params.frequency_penalty) * counts
        values -= np.float32(params.presence_penalty) * (counts > 0)
    row[ids] = values


def divisor_of(params: SamplingParams) -> np.float32:
    """What logits are divided by; 0 for a greedy request."""
    return np.float32(0.0 if params.is_greedy else min(params.temperature, _LARGEST))


def scale_logits(
    logits: FloatArray, peak: FloatArray | np.float32, divisor: FloatArray | np.float32
) -> FloatArray:
    """(logits - peak) / divisor: at most 0.  `peak` is the row's largest logit.

    Subtracting first keeps the precision where the probability is, at any temperature.
    """
    with np.errstate(over="ignore", under="ignore"):
        scaled: FloatArray = logits - peak
        scaled /= divisor
    return scaled


def kept_token_ids(scaled: FloatArray, params: SamplingParams) -> TokenIdArray | None:
    """Ascending ids of the tokens that min_p, top_k and top_p leave; None: all of them.

    `scaled` [V] comes from `scale_logits`.  Its best token always stays.
    """
    ids: TokenIdArray | None = None
    if params.min_p > 0.0:
        # p >= min_p * p_max, with p = exp(scaled) * p_max
        ids = np.flatnonzero(scaled >= smallest_scaled(params))
    if 0 < params.top_k < (len(scaled) if ids is None else len(ids)):
        ids = _narrow(ids, top_k_ids(scaled if ids is None else scaled[ids], params.top_k))
    if params.top_p < 1.0:
        ids = _narrow(ids, top_p_ids(scaled if ids is None else scaled[ids], params.top_p))
    return ids


def smallest_scaled(params: SamplingParams) -> np.float32:
    """The scaled logit down to which min_p keeps tokens."""
    return np.float32(np.log(params.min_p) if params.min_p > 0.0 else -np.inf)


def top_k_ids(values: FloatArray, k: int) -> TokenIdArray:
    """Ascending indices of the k largest; among equals the lowest indices."""
    num_values = len(values)
    if k >= num_values:
        return np.arange(num_values)
    if 4 * k <= _NUM_GROUPS <= num_values // 4:
        # Any k groups hold k values at least as large as the smallest of their maxima, so the
        # k-th largest maximum is a floor under the k-th largest value, and few values are above.
        num_grouped = num_values - num_values % _NUM_GROUPS
        maxima = values[:num_grouped].reshape(-1, _NUM_GROUPS).max(axis=0)
        floor = np.partition(maxima, _NUM_GROUPS - k)[_NUM_GROUPS - k]
        above = np.flatnonzero(values >= floor)
        return above[_largest(values[above], k)]
    return _largest(values, k)


def top_p_ids(scaled: FloatArray, p: float) -> TokenIdArray:
    """Ascending indices of the smallest set whose probability reaches p.

    The token that crosses p stays.  Probabilities are exp(`scaled`), normalised; among equals the
    lowest indices.
    """
    weights = np.exp(scaled)
    target = p * float(weights.sum(dtype=np.float64))
    near = _near_ids(scaled, weights, target)
    values = scaled if near is None else scaled[near]
    descending = np.sort(values)[::-1]
    cumulated = np.cumsum(np.exp(descending), dtype=np.float64)
    num_kept = min(int(np.searchsorted(cumulated, target)) + 1, len(values))
    return _narrow(near, _at_least(values, descending[num_kept - 1], num_kept))


def nucleus_of_listed(scaled: FloatArray, target: float, error: float) -> TokenIdArray | None:
    """What `top_p_ids` keeps of a row of which only the largest `scaled` are there, by id.

    `target` is p times the weight of the whole row, to a relative `error`.  None: that is not
    close enough to tell, or the nucleus goes beyond what is there.
    """
    descending = np.sort(scaled)[::-1]
    cumulated = np.cumsum(np.exp(descending), dtype=np.float64)
    first, last = np.searchsorted(cumulated, (target * (1.0 - error), target * (1.0 + error)))
    if first != last or last == len(scaled):
        return None
    return _at_least(scaled, descending[last], int(last) + 1)


def _near_ids(scaled: FloatArray, weights: FloatArray, target: float) -> TokenIdArray | None:
    """A few of the largest values that together weigh `target`, to spare sorting all of them."""
    for depth in _DEPTHS:
        near = np.flatnonzero(scaled >= -depth)
        # The margin outweighs the rounding of two sums taken in different orders.
        if float(weights[near].sum(dtype=np.float64)) > target * (1.0 + 1e-9):
            return near
    return None


def _largest(values: FloatArray, k: int) -> TokenIdArray:
    """Ascending indices of the k largest of more than k values."""
    kth = np.partition(values, len(values) - k)[len(values) - k]
    return _at_least(values, kth, k)


def _at_least(values: FloatArray, smallest: np.float32, num_kept: int) -> TokenIdArray:
    """Ascending indices of all above `smallest`, filled up to `num_kept` with equals to it."""
    kept = values > smallest
    num_equal = num_kept - int(np.count_nonzero(kept))
    kept[np.flatnonzero(values == smallest)[:num_equal]] = True
    return np.flatnonzero(kept)


def _narrow(ids: TokenIdArray | None, kept: TokenIdArray) -> TokenIdArray:
    """Indices into `ids` become token ids; None stands for all ids."""
    return kept if ids is None else ids[kept]


def _ids(field: str, token_ids: Sequence[int], vocab_size: int) -> TokenIdArray:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{field} has token id {token_id}, but the model's go from 0 to {vocab_size - 1}",
                field=field,
            )
    return np.array(token_ids, dtype=np.int64)
