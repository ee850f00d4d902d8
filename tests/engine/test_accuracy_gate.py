"""Every quantized kernel mode keeps to its bounds: the default model on a fixed text's start.

`chairlift bench accuracy` reads all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from chairlift.bench.accuracy import FLOAT32_KERNELS, measure_accuracy, read_text
from chairlift.config import KernelsName
from chairlift.engine.loaded_model import LoadedModel

TEXT = Path(__file__).parents[1] / "data" / "public_domain_text.txt"
MODES = [name for name in get_args(KernelsName) if name not in ("auto", *FLOAT32_KERNELS)]
NUM_WINDOWS = 3


@pytest.mark.real_model
@pytest.mark.parametrize("kernels", MODES)
def test_mode_keeps_to_its_bounds(
    load_default_model: Callable[[str], LoadedModel], kernels: str
) -> None:
    report = measure_accuracy(
        load_default_model(kernels),
        load_default_model("native"),
        read_text(TEXT),
        kernels=kernels,
        against_kernels="native",
        num_windows=NUM_WINDOWS,
    )
    assert report.tally.num_predictions == NUM_WINDOWS * 511
    assert report.passed, report.text()
