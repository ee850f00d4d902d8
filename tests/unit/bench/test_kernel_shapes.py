"""Shapes of a step: the built-in ones are the default model's, and a folder has its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.bench.kernel_shapes import MATRICES, default_shapes, read_shapes
from chairlift.bench.model_macs import MacRates
from chairlift.kernels.grouped_weights import QUANTISED_FLOATS


def test_default_shapes() -> None:
    shapes = default_shapes()
    assert [matrix.label for matrix in shapes.matrices] == [
        "qkv 960 x 576",
        "output 576 x 576",
        "gate-up 3072 x 576",
        "down 576 x 1536",
        "head 49152 x 576",
    ]
    assert [matrix.count for matrix in shapes.matrices] == [30, 30, 30, 30, 1]
    assert [matrix.form.bits for matrix in shapes.matrices] == [4, 4, 4, 4, 8]


def test_the_matrices_are_all_that_a_token_is_multiplied_by() -> None:
    shapes = default_shapes()
    assert shapes.num_weights == shapes.config.num_parameters
    head = MacRates.of(shapes.config).head_per_row
    assert shapes.matrix("head").num_weights == head


@pytest.mark.real_model
def test_the_built_in_shapes_are_those_of_the_file(default_model_path: Path) -> None:
    read, built_in = read_shapes(default_model_path, "x"), default_shapes()
    assert read.matrices == built_in.matrices
    eps = read.config.rms_norm_eps
    assert eps == pytest.approx(built_in.config.rms_norm_eps)
    assert dataclasses.replace(built_in.config, rms_norm_eps=eps) == read.config


def test_floats_are_quantised_as_the_kernels_do_it(tiny_folder: Callable[[str], Path]) -> None:
    shapes = read_shapes(tiny_folder("llama3"), "tiny")
    assert [matrix.name for matrix in shapes.matrices] == list(MATRICES)
    assert {matrix.form for matrix in shapes.matrices} == {QUANTISED_FLOATS}
    assert shapes.num_weights == shapes.config.num_parameters
