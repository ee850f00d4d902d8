"""The command as a whole: help without heavy imports, one line per mistake, quiet ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from chairlift import __version__
from chairlift.cli import main as main_module
from chairlift.cli.main import BROKEN_PIPE, INTERRUPTED, USER_MISTAKE, run
from chairlift.errors import ModelFileError

SOURCE = Path(main_module.__file__).parents[2]
HEAVY = ("numpy", "tokenizers", "huggingface_hub", "jinja2", "rich", "matplotlib", "tqdm")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from chairlift.cli.main import run; code = run(sys.argv[1:]);"
        f" print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    result = _python("-c", code, *arguments)
    assert result.returncode == 0 and result.stdout
    assert result.stderr.strip() == "[]"


def test_python_dash_m() -> None:
    result = _python("-m", "chairlift", "--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{__version__}\n", "")


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "demo" in capsys.readouterr().out
    assert run(["bench"]) == 0
    assert "policies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nonsense"], "nonsense"),
        (["generate", "x", "--nonsense"], "--nonsense"),
        (["generate", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens"),
        (["generate", "x", "--temperature", "nan"], "temperature"),
        (["generate", "x", "--top-p", "0"], "top_p"),
        (["generate", "x", "--temperature", "0", "--n", "2"], "n must be 1"),
        (["generate", "x", "--logit-bias", "a=1"], "logit_bias"),
        (["generate", "x", "--stop", ""], "stop"),
        (["generate", "x", "--kernels", "cuda"], "kernels"),
        (["generate", "x", "--block-size", "0"], "block_size"),
        (["generate", "x", "--kv-cache-memory", "lots"], "kv_cache_memory"),
        (["generate"], "no prompt"),
        (["generate", "--file", "./none.txt"], "none.txt"),
        (["generate", "x", "y", "--stream"], "--stream"),
        (["generate", "x", "--model", "./none.gguf"], "none.gguf"),
        (["chat", "--temperature", "-1"], "temperature"),
        (["pull", "./none.gguf"], "none.gguf"),
        (["pull"], "NAME"),
        (["info", "./none.gguf"], "none.gguf"),
        (["demo", "--seats", "0"], "--seats"),
        (["demo", "--num-requests", "0"], "--num-requests"),
        (["demo", "--out", "/dev/null/x"], "/dev/null/x"),
        (["bench", "nonsense"], "nonsense"),
        (["bench", "policies", "--workload", "odd"], "fixed, varied, extreme"),
        (["bench", "policies", "--concurrency", "1,x"], "1,x"),
        (["bench", "policies", "--concurrency", "0"], "concurrency"),
        (["bench", "policies", "--scale", "-1"], "scale"),
        (["bench", "policies", "--scale", "nan"], "scale"),
        (["bench", "policies", "--num-requests", "0"], "num_requests"),
        (["bench", "policies", "--json", "/nowhere/x.json"], "/nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == USER_MISTAKE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert word.lower() in captured.err.lower()


def _wrapped() -> Exception:
    error = ValueError("a tokenizer that cannot be opened")
    error.__cause__ = OSError("[Errno 12] Cannot allocate memory")
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("x.so: failed to map segment from shared object"),
        _wrapped(),
    ],
    ids=["python", "thread", "library", "wrapped"],
)
def test_too_little_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "app", fail)
    assert run(["serve"]) == USER_MISTAKE
    told = capsys.readouterr().err
    assert told.startswith("error: out of memory") and told.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("a mistake of ours"), KeyError("x")])
def test_a_mistake_of_ours_is_no_shortage(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "app", fail)
    with pytest.raises(type(error)):
        run(["serve"])


def _broken_models(folder: Path, model_folder: str) -> dict[str, Path]:
    magic = folder / "magic.gguf"
    magic.write_bytes(b"NOPE" + bytes(64))
    cut = folder / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\x00")
    strange = folder / "strange"
    strange.mkdir()
    for item in Path(model_folder).iterdir():
        (strange / item.name).write_bytes(item.read_bytes())
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    (folder / "empty").mkdir()
    return {"magic": magic, "cut": cut, "mamba": strange, "empty": folder / "empty"}


@pytest.mark.parametrize("name", ["magic", "cut", "mamba", "empty"])
@pytest.mark.parametrize("command", [["info"], ["generate", "x", "--model"], ["demo", "--model"]])
def test_a_broken_model_is_one_line(
    name: str,
    command: list[str],
    tmp_path: Path,
    model_folder: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = _broken_models(tmp_path, model_folder)[name]
    assert run([*command, str(path)]) == USER_MISTAKE
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert name in captured.err


def _app_raising(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    return app


def test_a_message_of_several_lines_becomes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "app", _app_raising(ModelFileError("one\n  two")))
    assert run([]) == USER_MISTAKE
    assert capsys.readouterr().err == "error: one two\n"


def test_ctrl_c_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "app", _app_raising(KeyboardInterrupt()))
    assert run([]) == INTERRUPTED
    assert capsys.readouterr().err.strip() == ""


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "app", _app_raising(AssertionError("ours")))
    with pytest.raises(AssertionError, match="ours"):
        run([])


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs pipes of a POSIX system")
def test_a_reader_that_has_gone_is_no_error(model_folder: str) -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-m", "chairlift", "info"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (BROKEN_PIPE, "")
