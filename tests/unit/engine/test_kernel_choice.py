"""What kernels=auto means for a file, and the lines that say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chairlift.config import EngineConfig
from chairlift.engine.kernel_choice import KernelChoice, choose_kernels, has_quantised_matrix
from chairlift.errors import ConfigError
from chairlift.kernels import registry
from chairlift.kernels.cpu.library import LibraryUnavailableError, load_library
from chairlift.models.registry import read_model_config
from chairlift.weights.checkpoint import open_checkpoint
from unit.models.test_decoder import Types, write_gguf

Choose = Callable[..., KernelChoice]


@pytest.fixture
def needs_library() -> None:
    try:
        load_library()
    except LibraryUnavailableError as error:
        pytest.skip(f"the native library is absent: {error}")


@pytest.fixture
def choose(tmp_path: Path) -> Choose:
    """choose(type of matrices, options ...) for a tiny model."""

    def get(kind: Types, **options: Any) -> KernelChoice:
        path = tmp_path / "model.gguf"
        write_gguf(path, "llama3", kind)
        with open_checkpoint(path) as checkpoint:
            config = read_model_config(checkpoint.kind, checkpoint.metadata)
            assert has_quantised_matrix(checkpoint) == (kind not in FLOATS)
            return choose_kernels(EngineConfig(**options), checkpoint, config, 1)

    return get


FLOATS = (Types.F32, Types.F16, Types.BF16)


@pytest.mark.parametrize("kind", FLOATS)
def test_a_file_of_floats_is_computed_on_floats(
    needs_library: None, choose: Choose, kind: Types
) -> None:
    choice = choose(kind)
    assert choice.kernels.name == "native"
    assert choice.reasons == (
        "kernels native (the file holds floats, and these kernels read them as they are)",
    )


def test_a_quantised_file_is_computed_on_bytes(needs_library: None, choose: Choose) -> None:
    choice = choose(Types.Q8_0)
    assert (choice.kernels.name, choice.kernels.quant_compute) == ("int8", "exact")
    assert choice.reasons == (
        "kernels int8 (the file is quantised)",
        "quant_compute exact (the file's own arithmetic)",
    )


@pytest.mark.parametrize(
    ("options", "compute", "why"),
    [
        ({"preset": "throughput"}, "fast", "preset throughput"),
        ({"preset": "throughput", "quant_compute": "exact"}, "exact", "quant_compute"),
        ({"preset": "latency"}, "exact", "the file's own arithmetic"),
        ({"quant_compute": "fast"}, "fast", "quant_compute"),
        ({"kernels": "int8", "quant_compute": "fast"}, "fast", "quant_compute"),
    ],
)
def test_how_bytes_are_multiplied(
    needs_library: None, choose: Choose, options: dict[str, Any], compute: str, why: str
) -> None:
    choice = choose(Types.Q8_0, **options)
    assert choice.kernels.quant_compute == compute
    assert choice.reasons[1] == f"quant_compute {compute} ({why})"


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "int8"}, {"quant_compute": "exact"}])
def test_what_only_bytes_have_means_bytes(
    needs_library: None, choose: Choose, options: dict[str, Any]
) -> None:
    choice = choose(Types.F32, **options)
    assert choice.kernels.name == "int8"
    assert choice.reasons[0] == f"kernels int8 ({next(iter(options))})"


def test_a_block_size_that_bytes_cannot_have_means_floats(
    needs_library: None, choose: Choose
) -> None:
    choice = choose(Types.Q8_0, block_size=8)
    assert choice.kernels.name == "native"
    assert choice.reasons == ("kernels native (block_size 8 does not suit the int8 kernels)",)
    with_floats = choose(Types.Q8_0, block_size=8, kv_cache_dtype="float16")
    assert with_floats.kernels.name == "int8"


def test_what_was_asked_for_is_given(choose: Choose) -> None:
    choice = choose(Types.Q8_0, kernels="reference")
    assert choice.reasons == ("kernels reference (kernels)",)


def test_without_the_library_numpy_takes_over(
    choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*arguments: object) -> None:
        raise LibraryUnavailableError("it is not there")

    monkeypatch.setattr(registry, "Int8Kernels", absent)
    choice = choose(Types.Q8_0)
    assert choice.reasons == ("kernels reference (the native library cannot be used)",)
    with pytest.raises(ConfigError, match="int8 kernels cannot be used") as caught:
        choose(Types.Q8_0, quant_compute="fast")
    assert caught.value.field == "kernels"
