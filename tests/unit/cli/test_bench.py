"""`chairlift bench policies` on a tiny model: both tables, predictions, notes, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PNG_MAGIC = b"\x89PNG\r\n"


@pytest.fixture
def bench(cli, model_folder):
    def run(*options: str):
        small = ("--model", model_folder, "--threads", "1", "--scale", "0.03")
        return cli("bench", "policies", *small, *options)

    return run


def test_both_tables(bench, tmp_path: Path) -> None:
    code, out, err = bench(
        *("--concurrency", "1,3", "--num-requests", "10"),
        *("--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")),
    )
    assert code == 0 and "\x1b" not in out
    assert "15 tokens in, 4 out, 32 seats" in out
    assert "all 4" in out and "1-15" in out and "1-31" in out
    assert "one at a time: no engine setting helps" in out
    assert err.count("\n") == err.count("tokens/s in") == 2 * 3 + 3 * 2
    report = json.loads((tmp_path / "b.json").read_text())
    assert [(cell["row"], cell["policy"]) for cell in report["concurrency"]] == [
        (row, policy) for row in ("1", "3") for policy in ("static", "dynamic", "continuous")
    ]
    cells = report["concurrency"] + report["output_lengths"]
    for cell in cells:
        ratio = cell["predicted_tokens_per_s"] / cell["tokens_per_s"]
        assert cell["prediction_error"] == pytest.approx(ratio - 1)
    assert report["concurrency"][2]["mean_running"] == pytest.approx(1.0)
    assert {cell["num_requests"] for cell in report["output_lengths"]} == {10}
    assert (tmp_path / "b.png").read_bytes().startswith(PNG_MAGIC)


def test_one_workload_is_one_table(bench) -> None:
    _, fixed, _ = bench("--workload", "fixed", "--concurrency", "2")
    assert "by requests at once" in fixed and "by output lengths" not in fixed
    _, varied, _ = bench("--workload", "varied", "--num-requests", "4")
    assert "by output lengths" in varied and "by requests at once" not in varied
    assert "all 4" not in varied and "gain" in varied


def test_lengths_beyond_the_context_name_scale(bench) -> None:
    code, out, err = bench("--scale", "1")
    assert (code, out) == (2, "") and "scale is too large" in err and "256" in err
