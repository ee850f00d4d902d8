"""`chairlift demo` on a tiny model: table, JSON, picture, and the claim that outputs agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.bench import demo_comparison
from chairlift.bench.policy_run import RequestResult

PNG_MAGIC = b"\x89PNG\r\n"


@pytest.fixture
def demo(cli, model_folder, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(demo_comparison, "MEAN_GAP_S", 0.001)
    monkeypatch.setattr(demo_comparison, "STATIC_WAIT_MS", 50.0)
    monkeypatch.setattr(demo_comparison, "DYNAMIC_WAIT_MS", 5.0)

    def run(*options: str):
        small = ("--num-requests", "12", "--seats", "4", "--threads", "1", "--model", model_folder)
        return cli("demo", "--out", str(tmp_path / "out"), *small, *options)

    return run


def test_table_json_and_picture(demo, tmp_path: Path) -> None:
    code, out, err = demo()
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if len(line.split()) == 7}
    assert {"static", "dynamic", "continuous"} <= set(rows)
    assert "all 12 answers are the same, token by token, under the three policies" in lines
    assert (tmp_path / "out" / "chairlift-demo.png").read_bytes().startswith(PNG_MAGIC)
    report = json.loads((tmp_path / "out" / "chairlift-demo.json").read_text())
    assert report["identical_outputs"] is True and len(report["requests"]) == 12
    by_policy = {run["policy"]: run for run in report["runs"]}
    total = sum(request["num_output_tokens"] for request in report["requests"])
    assert {run["num_output_tokens"] for run in report["runs"]} == {total}
    assert "x" in "".join(step["seats"] for step in by_policy["static"]["steps"])
    assert "x" not in "".join(step["seats"] for step in by_policy["continuous"]["steps"])
    assert {len(step["seats"]) for step in by_policy["dynamic"]["steps"]} == {4}
    assert float(rows["static"][0]) == pytest.approx(by_policy["static"]["tokens_per_s"], abs=0.06)
    # Counted in steps and not in seconds, so that the machine's speed has no say.
    assert by_policy["continuous"]["mean_batch"] > by_policy["dynamic"]["mean_batch"]
    assert by_policy["continuous"]["mean_batch"] > by_policy["static"]["mean_batch"]


def test_without_matplotlib_everything_else_is_there(demo, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    code, out, err = demo()
    assert code == 0 and "static" in out
    assert err == "no picture: matplotlib is missing; pip install 'chairlift[plot]'\n"
    assert (tmp_path / "out" / "chairlift-demo.json").is_file()
    assert not (tmp_path / "out" / "chairlift-demo.png").exists()


def test_answers_that_differ_are_told(demo, monkeypatch) -> None:
    original = demo_comparison.drive

    def forge(target, feed, on_step):
        run = original(target, feed, on_step=on_step)
        if run.policy != "dynamic":
            return run
        import dataclasses

        first: RequestResult = run.results[0]
        changed = dataclasses.replace(first, token_ids=(0, *first.token_ids[1:], 0))
        return dataclasses.replace(run, results=(changed, *run.results[1:]))

    monkeypatch.setattr(demo_comparison, "drive", forge)
    code, out, _ = demo()
    assert code == 0
    assert "WARNING: 1 of 12 answers differ between the policies" in out


def test_a_folder_that_cannot_be_written_is_found_out_first(cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = cli("demo", "--out", str(tmp_path / "file"), "--model", "./none.gguf")
    assert (code, out) == (2, "") and "--out" in err
