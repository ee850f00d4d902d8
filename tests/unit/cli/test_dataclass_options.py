"""Options from dataclass fields: only what was given is passed on; help comes from the field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.cli.field_docs import field_docs
from chairlift.config import EngineConfig
from chairlift.errors import ConfigError
from chairlift.sampling_params import SamplingParams


@dataclass(kw_only=True)
class Sample:
    """Fields of each kind."""

    size: int | None = None
    """How large,
    in units."""
    mode: Literal["slow", "fast"] = "slow"
    """How fast."""
    is_loud: bool = True
    memory: int | str | None = None
    words: list[str] = field(default_factory=list)
    logit_bias: dict[int, float] = field(default_factory=dict)
    shared: float = 1.0


@dataclass(kw_only=True)
class Other:
    shared: float = 2.0
    own: str = "x"


def _call(*arguments: str, **options: Any) -> tuple[Values, Values]:
    seen: list[Any] = []
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command()
    @with_options(Sample, Other, **options)
    def command(
        extra: Annotated[int, typer.Option()] = 0, *, sample: Values, other: Values
    ) -> None:
        seen.extend([sample, other])

    app(list(arguments), standalone_mode=False)
    return seen[0], seen[1]


def test_nothing_given_is_nothing_passed_on() -> None:
    assert _call() == ({}, {})


def test_values_of_each_kind() -> None:
    sample, other = _call(
        *("--size", "3", "--mode", "fast", "--no-is-loud", "--memory", "2GiB"),
        *("--words", "a b", "--words", "c", "--logit-bias", "7=-1.5", "--own", "y"),
    )
    assert sample == {
        "size": 3,
        "mode": "fast",
        "is_loud": False,
        "memory": "2GiB",
        "words": ["a b", "c"],
        "logit_bias": {7: -1.5},
    }
    assert other == {"own": "y"}


def test_a_shared_name_belongs_to_the_first_class() -> None:
    assert _call("--shared", "5") == ({"shared": 5.0}, {})


def test_defaults_of_the_command_yield_to_the_user() -> None:
    assert _call(defaults={"size": 9})[0] == {"size": 9}
    assert _call("--size", "1", defaults={"size": 9})[0] == {"size": 1}


def test_only_and_without() -> None:
    assert _call("--own", "z", only=("own",)) == ({}, {"own": "z"})
    with pytest.raises(Exception, match="--size"):
        _call("--size", "1", without=("size",))


def test_a_bias_without_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="42=-5.*'7'"):
        _call("--logit-bias", "7")


def test_help_is_the_docstring_under_the_field() -> None:
    docs = field_docs(Sample)
    assert docs["size"] == "How large, in units."
    assert docs["mode"] == "How fast."
    assert "is_loud" not in docs


@pytest.mark.parametrize("kind", [SamplingParams, EngineConfig])
def test_every_option_has_a_help_text(kind: Any) -> None:
    names = set(kind.__dataclass_fields__) - {"detokenize"}
    assert names <= set(field_docs(kind))
