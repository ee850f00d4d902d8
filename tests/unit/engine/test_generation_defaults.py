from __future__ import annotations

from typing import Any

import pytest

from chairlift.engine.generation_defaults import GenerationDefaults, read_generation_defaults
from chairlift.errors import ModelFileError
from chairlift.sampling_params import SamplingParams


def test_gguf_sampling_keys() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.sampling.min_p": 0.05,
        "general.sampling.penalty_repeat": 1.1,
        "general.name": "x",
    }
    assert read_generation_defaults("gguf", metadata).sampling_params() == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, repetition_penalty=1.1
    )


def test_nothing_in_the_file_gives_plain_defaults() -> None:
    assert read_generation_defaults("gguf", {}).sampling_params() == SamplingParams()
    folder = read_generation_defaults("huggingface", {"config": {}, "generation_config": None})
    assert folder == GenerationDefaults()


def test_folder_options_and_end_tokens_of_both_files() -> None:
    defaults = read_generation_defaults(
        "huggingface",
        {
            "config": {"eos_token_id": 7},
            "generation_config": {
                "eos_token_id": [9, 7, True, "x"],
                "temperature": 0.7,
                "top_k": None,
                "max_new_tokens": 99,
                "do_sample": True,
                "pad_token_id": 3,
            },
        },
    )
    assert defaults.eos_ids == (9, 7)
    assert defaults.sampling_params() == SamplingParams(temperature=0.7, max_tokens=99)


def test_folder_that_does_not_sample_is_greedy() -> None:
    generation = {"do_sample": False, "temperature": 0.7, "top_p": 0.9}
    metadata: dict[str, Any] = {"config": {}, "generation_config": generation}
    assert read_generation_defaults("huggingface", metadata).sampling_params().is_greedy


def test_unusable_defaults_name_the_field() -> None:
    with pytest.raises(ModelFileError, match="top_p"):
        read_generation_defaults("gguf", {"general.sampling.top_p": 1.5})
