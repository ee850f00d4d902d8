"""`chairlift bench kernels` on a tiny model's shapes: lines, summary, JSON, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.bench import kernel_timing
from chairlift.bench.kernel_timing import TimingPlan

SHORT = TimingPlan(rows=(1, 3), row_op_rows=(2,), num_turns=1, seconds_per_turn=0.0)


@pytest.fixture
def kernels(cli, model_folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel_timing, "QUICK_PLAN", SHORT)

    def run(*options: str):
        return cli("bench", "kernels", model_folder, "--quick", "--threads", "1", *options)

    return run


def test_every_kernel_has_a_rate_a_limit_and_a_share(kernels, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    code, out, _ = kernels("--json", str(path))
    assert code == 0 and "\x1b" not in out and "1 threads" in out
    assert "limits, medians of this run: int8 dot" in out
    for family in ("GEMM exact int8", "GEMM fast int8", "GEMM bfloat16", "attention int8"):
        assert out.count(f"\n{family}\n") == 1 and f"\n  {family} " in out
    written = json.loads(path.read_text())
    assert set(written["limits"]) == {"int8 dot", "fp32 FMA", "memory read"}
    assert written["num_threads"] == 1 and written["without_int8"] is None
    # 5 matrices on 2 kinds of bytes and 3 of floats, the MLP in 3 modes, both with 1 and 3 rows;
    # 4 caches; 3 ops in 2 modes, and 2 more kinds of tables.
    assert len(written["cases"]) == (5 * 5 + 3) * 2 + 4 * 4 + 3 * 2 + 2
    for case in written["cases"]:
        assert case["seconds"] > 0 and case["rate"] > 0 and case["limit_rate"] > 0
        assert case["share"] == pytest.approx(case["bound_seconds"] / case["seconds"])
        assert case["share"] == pytest.approx(case["rate"] / case["limit_rate"])
        line = next(line for line in out.splitlines() if line.startswith(case["label"]))
        assert line.endswith("%")


def test_only_some_families(kernels) -> None:
    code, out, _ = kernels("--only", "norm")
    assert code == 0 and "norm float32" in out and "GEMM" not in out


def test_mistakes_name_what_is_wrong(kernels, cli, tmp_path: Path) -> None:
    code, _, err = kernels("--only", "convolution")
    assert code == 2 and "no family has 'convolution' in its name: GEMM exact int8" in err
    code, _, err = kernels("--json", str(tmp_path / "no" / "k.json"))
    assert code == 2 and "there is no folder" in err
    code, _, err = cli("bench", "kernels", str(tmp_path / "nothing.gguf"))
    assert code == 2 and "error:" in err
    code, _, err = cli("bench", "kernels", "--threads", "0")
    assert code == 2 and "threads must be at least 1" in err
