"""Lengths: the three forms, their bounds, and what is refused."""

from __future__ import annotations

import random
import statistics

import pytest

from chairlift.bench.serve.lengths import Lengths, parse_lengths
from chairlift.errors import ConfigError


def test_a_number_is_always_itself() -> None:
    lengths = parse_lengths("512", "input_len")
    assert {lengths.draw(random.Random(seed)) for seed in range(20)} == {512}
    assert lengths.describe() == "512"


def test_a_range_includes_both_ends() -> None:
    lengths = parse_lengths("3-5", "input_len")
    rng = random.Random(0)
    assert {lengths.draw(rng) for _ in range(100)} == {3, 4, 5}
    assert lengths.describe() == "3-5"


def test_lognormal_has_its_median_and_its_spread() -> None:
    lengths = parse_lengths("lognormal:200,0.5", "input_len")
    rng = random.Random(0)
    drawn = [lengths.draw(rng) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.05)
    # 16 % of a normal distribution lies above one standard deviation.
    assert sum(value > 200 * 1.6487 for value in drawn) / 4000 == pytest.approx(0.159, abs=0.02)


def test_lognormal_is_cut_to_its_bounds() -> None:
    lengths = parse_lengths("lognormal:100,2,50-150", "input_len")
    assert lengths == Lengths(low=50, high=150, median=100.0, sigma=2.0)
    rng = random.Random(0)
    drawn = {lengths.draw(rng) for _ in range(500)}
    assert min(drawn) == 50 and max(drawn) == 150


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "5-3", "a", "1.5", "lognormal:", "lognormal:5", "lognormal:0.5,1",
     "lognormal:1.2.3,1", "lognormal:5,1,0-3", "99999999999", "1-2-3", "٣"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_field(text: str) -> None:
    with pytest.raises(ConfigError, match="output_len takes") as caught:
        parse_lengths(text, "output_len")
    assert caught.value.field == "output_len"
