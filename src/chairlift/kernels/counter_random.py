"""Stateless noise: a number for every (seed, choice, position, token id), and nothing remembered.

A request draws the same noise whatever runs beside it, and after a preemption, because no
generator advances: each value is a hash of its own key.  The value of a token depends neither on
how many values are asked for nor on which others.  The native library draws the same words
(csrc/logit_scan.cpp).  Knows nothing of logits or requests.

```
step(x)  = mix(x + GAMMA)                                  one step of SplitMix64
key      = step(step(step(seed) + choice) + position)      one per drawn token
pair i   = mix(key + (i + 1) * GAMMA)                      SplitMix64's i-th output from `key`
token t  = low half of pair t // 2 if t is even, else the high half;  u = (half + 1/2) / 2**32
```

Source: SplitMix64, Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA
2014), with the output function of Stafford's variant 13.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
WordArray = NDArray[np.uint32]
KeyArray = NDArray[np.uint64]
TokenIdArray = NDArray[np.int64]

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_SCALE: Final = 2.0**-32


def stream_key(seed: int, choice: int, position: int) -> int:
    """64-bit key of one drawn token.  Seeds that are equal modulo 2**64 are the same seed."""
    return _step(stream_base(seed, choice) + position)


def stream_base(seed: int, choice: int) -> int:
    """What the keys of one request's tokens have in common."""
    return _step(_step(seed) + choice)


def stream_keys(bases: KeyArray, positions: KeyArray) -> KeyArray:
    """[R] keys, one for each base and position."""
    return _mix_states(np.ones(len(bases), np.uint64), bases + positions)


def words(key: int, size: int) -> WordArray:
    """[size] 32-bit words of tokens 0 .. size - 1."""
    states = np.arange(1, size // 2 + 2, dtype=np.uint64)
    halves: WordArray = _mix_states(states, key).astype("<u8", copy=False).view("<u4")[:size]
    return halves


def words_of(key: int | KeyArray, token_ids: TokenIdArray) -> WordArray:
    """The words of these tokens only: `words(key, size)[token_ids]` without the rest.

    `key` may be an array that fits `token_ids`: a key for each.
    """
    ids = token_ids.astype(np.uint64)
    mixed = _mix_states((ids >> np.uint64(1)) + np.uint64(1), key)
    shift = (ids & np.uint64(1)) << np.uint64(5)
    return (mixed >> shift).astype(np.uint32)


def uniform_of_words(drawn: WordArray) -> Float64Array:
    """Numbers in the open interval (0, 1), 2**-32 apart, exact in float64."""
    return (drawn.astype(np.float64) + 0.5) * _SCALE


def gumbel_of_words(drawn: WordArray) -> Float64Array:
    """Standard Gumbel noise, -log(-log(u)): finite, between -3.2 and 22.9."""
    return -np.log(-np.log(uniform_of_words(drawn)))


def uniform(seed: int, choice: int, position: int, size: int) -> Float64Array:
    """[size] uniform numbers in the open interval (0, 1) for tokens 0 .. size - 1."""
    return uniform_of_words(words(stream_key(seed, choice, position), size))


def gumbel(seed: int, choice: int, position: int, size: int) -> Float64Array:
    """[size] Gumbel noise, for the Gumbel-max trick: argmax(logits + gumbel) ~ softmax(logits)."""
    return gumbel_of_words(words(stream_key(seed, choice, position), size))


def word_below(gumbel_value: float) -> int:
    """A word w such that every token whose noise is above `gumbel_value` has a word above w.

    Compares words in place of taking two logarithms; errs on the safe side by two words.
    """
    exponent = -gumbel_value
    probability = math.exp(-math.exp(exponent)) if exponent < 700.0 else 0.0
    return max(int(probability * 2.0**32) - 3, -1)


def _step(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _mix_states(steps: KeyArray, key: int | KeyArray) -> KeyArray:
    """mix(key + steps * GAMMA), modulo 2**64, written over `steps`."""
    states = steps
    states *= np.uint64(_GAMMA)
    states += np.asarray(key, np.uint64)
    states ^= states >> np.uint64(30)
    states *= np.uint64(_FIRST)
    states ^= states >> np.uint64(27)
    states *= np.uint64(_SECOND)
    states ^= states >> np.uint64(31)
    return states
