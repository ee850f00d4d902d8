"""`chairlift bench latency` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def latency(cli, model_folder):
    def run(*options: str):
        small = ("--model", model_folder, "--threads", "1", "--num-iters", "3")
        return cli("bench", "latency", *small, "--num-iters-warmup", "1", *options)

    return run


def test_latency_table_and_json(latency, tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    options = ("--batch-size", "2", "--input-len", "5", "--output-len", "4")
    code, out, err = latency(*options, "--output-json", str(path))
    assert code == 0 and "batches of 2, 5 tokens in, 4 out" in out
    rows = [line for line in out.splitlines() if line.startswith(("batch,", "time "))]
    assert [row.split("  ")[0] for row in rows] == [
        "batch, end to end",
        "time to first token",
        "time per output token",
    ]
    assert "warm-up:" in err and "iteration 3/3:" in err
    written = json.loads(path.read_text())
    assert len(written["latencies"]) == 3
    assert written["avg_latency"] == pytest.approx(sum(written["latencies"]) / 3)
    assert set(written["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert written["percentiles"]["99"] == max(written["latencies"])
    assert 0 < written["ttft"]["avg"] < written["avg_latency"] and written["tpot"]["avg"] > 0


def test_one_token_has_no_time_per_token(latency, tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    code, out, _ = latency("--batch-size", "1", "--output-len", "1", "--output-json", str(path))
    assert code == 0 and "time per output token" not in out
    assert json.loads(path.read_text())["tpot"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-size", "0"), "batch-size"),
        (("--num-iters", "0"), "num-iters"),
        (("--input-len", "4-8"), "input-len"),
        (("--output-len", "9999"), "make requests of 10031 tokens"),
        (("--output-json", "/nowhere/at/all.json"), "there is no folder"),
    ],
)
def test_mistakes_in_latency_options(latency, options: tuple[str, ...], message: str) -> None:
    code, out, err = latency(*options)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
