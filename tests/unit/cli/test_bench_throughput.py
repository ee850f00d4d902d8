"""`chairlift bench throughput` on a tiny model: figures, JSON, the comparison, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def throughput(cli, model_folder):
    def run(*options: str):
        small = ("--model", model_folder, "--threads", "1", "--input-len", "9")
        return cli("bench", "throughput", *small, *options)

    return run


def test_figures_agree_with_each_other(throughput, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    code, out, err = throughput(
        *("--num-prompts", "6", "--output-len", "3-8", "--max-num-seqs", "4"),
        *("--rounds", "3", "--limit", "--output-json", str(path)),
    )
    assert code == 0 and "\x1b" not in out
    assert "6 requests, 9 tokens in, 3-8 out, seed 0; native kernels, 1 threads" in out
    assert "median of 3 rounds:" in out and "Python's share" in out and "resident" in out
    assert "limit " in out and "all at the fp32 FMA peak" in out
    assert [line.split(":")[0] for line in err.splitlines() if "tokens/s in all" in line] == [
        "warm-up",
        "round 1",
        "round 2",
        "round 3",
    ]
    written = json.loads(path.read_text())
    assert written["num_requests"] == 6 and len(written["rounds"]) == 3
    elapsed = sorted(one["elapsed_time"] for one in written["rounds"])
    assert written["elapsed_time"] == elapsed[1]
    assert written["requests_per_second"] == pytest.approx(6 / elapsed[1])
    total = written["total_num_tokens"]
    assert total == 6 * 9 + written["num_output_tokens"]
    assert written["tokens_per_second"] == pytest.approx(total / elapsed[1])
    assert written["engine"]["enable_prefix_caching"] is False
    assert written["scheduler"]["max_num_seqs"] == 4
    assert sum(written["seconds"].values()) == pytest.approx(elapsed[1])
    assert 0 < written["python_share"] < 1
    limit = written["limit"]["limits"][0]
    reached = written["output_tokens_per_second"] / limit["output_tokens_per_second"]
    assert limit["share"] == pytest.approx(reached)
    memory = written["memory"]
    assert 0 < memory["kv_used_bytes"] <= memory["kv_planned_bytes"]
    assert memory["peak_bytes"] >= memory["peak_loading_bytes"] > memory["weights_bytes"] > 0


def test_engine_options_reach_the_engine(throughput, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    code, out, _ = throughput(
        *("--num-prompts", "3", "--output-len", "2", "--batching-policy", "static"),
        *("--static-batch-size", "2", "--kernels", "reference", "--seed", "7"),
        *("--output-json", str(path)),
    )
    assert (
        code == 0 and "reference kernels" in out and "static batching" in out and "limit" not in out
    )
    written = json.loads(path.read_text())
    assert written["seed"] == 7 and written["limit"] is None
    assert written["scheduler"]["static_batch_size"] == 2
    assert written["memory"]["kv_planned_bytes"] == 3 * (3 * 2 * 16 * 1 * 16 * 4)  # 3 blocks


def test_compared_policies(throughput, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    code, out, err = throughput(
        *("--num-prompts", "24", "--output-len", "2-24", "--max-num-seqs", "4"),
        *("--compare-policies", "--rounds", "2", "--output-json", str(path)),
    )
    assert code == 0 and "static batch and seats 4" in out
    assert "continuous over static:" in out and "by effective batches" in out
    assert "apart in 2 rounds" in out and "less than twice" not in out
    assert "round 2 continuous:" in err
    written = json.loads(path.read_text())
    assert written["num_seats"] == 4 and len(written["rounds"]) == 2
    for one in written["rounds"]:
        static, continuous = one["static"], one["continuous"]
        assert static["num_padding_rows"] > 0 == continuous["num_padding_rows"]
        assert static["num_steps"] > continuous["num_steps"]
        assert 0 < static["effective_batch"] < continuous["effective_batch"] <= 4
        measured = continuous["output_tokens_per_second"] / static["output_tokens_per_second"]
        assert one["measured_ratio"] == pytest.approx(measured)
        batches = continuous["effective_batch"] / static["effective_batch"]
        assert one["difference"] == pytest.approx(measured / batches - 1)
    assert written["is_kept"] == (abs(written["difference"]) <= written["bound"] == 0.1)


def test_too_few_requests_for_a_comparison_are_told(throughput) -> None:
    code, out, _ = throughput("--num-prompts", "6", "--output-len", "8", "--compare-policies")
    assert code == 0 and "6 requests fill 32 seats less than twice" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num-prompts", "0"), "num-prompts"),
        (("--input-len", "many"), "input_len takes a number of tokens"),
        (("--output-len", "9-3"), "output_len takes a number of tokens"),
        (("--output-len", "5000"), "make requests of 5009 tokens"),
        (("--rounds", "0"), "rounds"),
        (("--output-json", "/nowhere/at/all.json"), "there is no folder"),
        (("--compare-policies", "--limit"), "limit says nothing with compare_policies"),
        (("--compare-policies", "--batching-policy", "static"), "batching_policy is set by"),
        (("--compare-policies", "--enable-prefix-caching"), "without a prefix cache"),
        (("--batching-policy", "perpetual"), "batching_policy must be one of"),
    ],
)
def test_mistakes_in_throughput_options(throughput, options: tuple[str, ...], message: str) -> None:
    code, out, err = throughput(*options)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
