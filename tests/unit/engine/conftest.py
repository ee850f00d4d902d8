"""What the engine room's unit tests share: an input processor over a byte-level tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chairlift.engine.input_processor import InputProcessor
from chairlift.engine.loaded_model import LoadedModel
from chairlift.sampling_params import SamplingParams


@pytest.fixture
def make_input_processor(
    load_tiny: Callable[..., LoadedModel],
) -> Callable[..., InputProcessor]:
    """make_input_processor(max_model_len=20, ...) -> one for the tiny model (256 tokens)."""

    def make(**options: Any) -> InputProcessor:
        given = {"vocab_size": 256, "max_model_len": 32, "defaults": SamplingParams(), "seed": 0}
        return InputProcessor(load_tiny().tokenizer, **{**given, **options})

    return make
