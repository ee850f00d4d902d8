"""Fixtures that many folders share: the default model, loaded once, and a tiny one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.weights.model_source import DEFAULT_MODEL, resolve_model
from engines import load
from parity.tiny_checkpoints import make_tiny_checkpoint


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers under test keep nothing among the user's own things."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, downloaded if it is not in the cache yet."""
    return resolve_model(DEFAULT_MODEL, progress=False)


@pytest.fixture(scope="session")
def load_default_model(default_model_path: Path) -> Callable[..., LoadedModel]:
    """load_default_model("native") -> the default model on these kernels, loaded once.

    Further options, such as kv_cache_dtype, by name.
    """
    loaded: dict[object, LoadedModel] = {}

    def get(kernels: str, **options: Any) -> LoadedModel:
        key = (kernels, *options.items())
        if key not in loaded:
            loaded[key] = load(default_model_path, kernels=kernels, **options)
        return loaded[key]

    return get


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_folder("llama3") -> a folder with that tiny random checkpoint, made once."""
    root = tmp_path_factory.mktemp("tiny")

    def get(variant: str) -> Path:
        folder = root / variant
        if not folder.exists():
            folder.mkdir()
            make_tiny_checkpoint(variant, folder)
        return folder

    return get


@pytest.fixture(scope="session")
def load_tiny(tiny_folder: Callable[[str], Path]) -> Callable[..., LoadedModel]:
    """load_tiny("llama3", "reference") -> a tiny random model on these kernels, loaded once.

    Further options, such as kv_cache_dtype, by name.
    """
    loaded: dict[object, LoadedModel] = {}

    def get(variant: str = "llama3", kernels: str = "native", **options: Any) -> LoadedModel:
        key = (variant, kernels, *options.items())
        if key not in loaded:
            loaded[key] = load(tiny_folder(variant), kernels=kernels, **options)
        return loaded[key]

    return get
