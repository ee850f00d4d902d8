"""`chairlift bench structured` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def structured(cli, model_folder):
    def run(*options: str):
        small = ("--model", model_folder, "--threads", "1", "--num-prompts", "4")
        return cli("bench", "structured", *small, "--input-len", "5", "--output-len", "6", *options)

    return run


def test_shares_side_by_side(structured, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    code, out, err = structured("--rounds", "2", "--temperature", "0.8", "--output-json", str(path))
    assert code == 0 and "4 requests, 5 tokens in, 6 out" in out
    rows = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "50", "100"]
    assert rows[0][-1] == "100.0%" and all(row[-1].endswith("%") for row in rows)
    assert err.index("round 1, 0 %") < err.index("round 1, 100 %") < err.index("round 2, 100 %")
    written = json.loads(path.read_text())
    assert written["num_requests"] == 4 and written["temperature"] == 0.8
    assert {len(s["output_tokens_per_second"]) for s in written["shares"].values()} == {2}
    assert written["shares"]["0"]["ratio"] == 1.0 and written["shares"]["50"]["ratio"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num-prompts", "1"), "num-prompts"),
        (("--rounds", "0"), "rounds"),
        (("--temperature", "-1"), "temperature"),
        (("--output-len", "9999"), "make requests of 10004 tokens"),
    ],
)
def test_mistakes_in_structured_options(structured, options: tuple[str, ...], message: str) -> None:
    code, out, err = structured(*options)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
