"""`chairlift bench accuracy` on a tiny model: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chairlift.bench.kernel_mode as mode_module
from chairlift.bench.kernel_mode import AccuracyBounds


@pytest.fixture
def accuracy(cli, model_folder, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("The same words again, and no others at all. " * 20)

    def run(*options: str):
        small = ("--model", model_folder, "--threads", "1", "--text", str(text))
        return cli("bench", "accuracy", *small, *options)

    return run


def test_figures_bounds_and_verdict(accuracy, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    code, out, err = accuracy("--kernels", "reference", "--json", str(path))
    assert code == 0 and "reference, float32 KV: passed" in out
    assert "765 predictions in 3 windows of 256 tokens" in out
    assert "perplexity" in out and "at most +0.01%" in out and "at least 99.9%" in out
    assert "loading" in err and "window 3/3: perplexity" in err
    written = json.loads(path.read_text())
    assert written["passed"] is True and written["agreement"] == 1.0
    assert (written["kernels"], written["against"]) == ("reference", "native")
    assert (written["kv_cache_dtype"], written["quant_compute"]) == ("float32", None)
    assert written["perplexity"] == pytest.approx(written["against_perplexity"], rel=1e-4)


def test_a_cache_of_another_type_is_another_mode(accuracy) -> None:
    options = ("--kernels", "native", "--kv-cache-dtype", "bf16", "--windows", "1")
    code, out, _ = accuracy(*options)
    assert code == 0 and "native, bfloat16 KV: passed" in out
    assert "native, float32 KV" in out and "at least 95.0%" in out


def test_every_mode_of_some_kernels_at_once(accuracy, tmp_path: Path) -> None:
    path = tmp_path / "modes.json"
    options = ("--kernels", "native", "--all-modes", "--windows", "1", "--json", str(path))
    code, out, _ = accuracy(*options)
    assert code == 0 and "mode" in out and "same best token" in out
    (header,) = [line for line in out.splitlines() if line.startswith("native, float32 KV")]
    assert "passed" not in header
    modes = json.loads(path.read_text())["modes"]
    assert [mode["kv_cache_dtype"] for mode in modes] == ["float16", "bfloat16"]
    for mode in modes:
        name = f"native, {mode['kv_cache_dtype']} KV"
        (line,) = [text for text in out.splitlines() if text.startswith(name)]
        assert f"{mode['perplexity']:.4f}" in line and f"{mode['agreement']:.2%}" in line
        assert line.rstrip().endswith("passed")


def test_windows_limits_the_work(accuracy) -> None:
    code, out, _ = accuracy("--kernels", "native", "--against", "reference", "--windows", "1")
    assert (
        code == 0 and "255 predictions in 1 windows" in out and "native, float32 KV: passed" in out
    )


def test_too_far_is_exit_code_1(accuracy, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = AccuracyBounds(max_perplexity_change=-1.0, min_agreement=0.5)
    monkeypatch.setattr(mode_module, "FLOAT32_BOUNDS", impossible)
    code, out, _ = accuracy("--kernels", "reference", "--windows", "1")
    assert code == 1 and "reference, float32 KV: FAILED" in out


def test_mistakes_are_told_before_anything_is_loaded(accuracy, tmp_path: Path) -> None:
    for options, message in (
        (("--kernels", "native"), "choose different ones"),
        (("--kernels", "native", "--kv-cache-dtype", "fp32"), "choose different ones"),
        (("--kernels", "native", "--kv-cache-dtype", "int8"), "kv_cache_dtype=int8"),
        (("--kernels", "reference", "--quant-compute", "fast"), "quant_compute=fast"),
        (("--all-modes", "--quant-compute", "fast"), "--all-modes measures every quant_compute"),
        (("--all-modes", "--kv-cache-dtype", "fp16"), "--all-modes measures every kv_cache_dtype"),
        (("--kernels", "reference", "--text", "nowhere.txt"), "--text"),
        (("--kernels", "reference", "--json", str(tmp_path / "no" / "a")), "there is no folder"),
    ):
        code, out, err = accuracy(*options)
        assert (code, out) == (2, "") and message in err and "loading" not in err
