"""Every quantized kernel mode keeps to its bounds, and none below the gate is the default.

`chairlift bench accuracy` reads all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.bench.accuracy import measure_accuracy, read_text
from chairlift.bench.kernel_mode import AccuracyBounds, KernelMode
from chairlift.engine.loaded_model import LoadedModel

TEXT = Path(__file__).parents[1] / "data" / "public_domain_text.txt"
MODES = [
    KernelMode(kernels="int8", kv_cache_dtype="int8", quant_compute=compute)
    for compute in ("exact", "fast")
]
NUM_WINDOWS = 3


@pytest.mark.real_model
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_mode_keeps_to_its_bounds(
    load_default_model: Callable[..., LoadedModel], mode: KernelMode
) -> None:
    report = measure_accuracy(
        load_default_model(
            mode.kernels, kv_cache_dtype=mode.kv_cache_dtype, quant_compute=mode.quant_compute
        ),
        load_default_model("native"),
        read_text(TEXT),
        mode=mode,
        against_mode=KernelMode(kernels="native"),
        num_windows=NUM_WINDOWS,
    )
    assert report.tally.num_predictions == NUM_WINDOWS * 511
    bounds = report.bounds
    # A few windows only: the measured share and change are off by so much themselves.
    slack = AccuracyBounds(
        max_perplexity_change=bounds.max_perplexity_change
        + 2 * report.tally.perplexity_change_error,
        min_agreement=bounds.min_agreement - 0.01,
    )
    assert dataclasses.replace(report, bounds=slack).passed, report.text()


@pytest.mark.real_model
def test_the_default_mode_is_one_of_them(load_default_model: Callable[..., LoadedModel]) -> None:
    kernels = load_default_model("auto").runner.model.kernels
    assert (kernels.name, kernels.kv_dtype, kernels.quant_compute) == ("int8", "int8", "exact")
