"""A tiny model on disk, and the command line as a function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.cli.main import run
from chairlift.log import LOGGER_NAME
from parity.tiny_checkpoints import make_tiny_checkpoint

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("cli_model")
    make_tiny_checkpoint("qwen2", folder)
    return str(folder)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("info", "--json")` is (exit code, standard output, standard error)."""
    logger = logging.getLogger(LOGGER_NAME)
    for name, value in (("handlers", []), ("level", logging.NOTSET), ("propagate", True)):
        monkeypatch.setattr(logger, name, value)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def small(model_folder: str) -> tuple[str, ...]:
    """Options for the tiny model: little memory, one thread."""
    return ("--model", model_folder, "--threads", "1", "--kv-cache-memory", "8MiB")
