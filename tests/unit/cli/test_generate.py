"""`chairlift generate` on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from chairlift.engine.llm import LLM
from chairlift.sampling_params import SamplingParams

PROMPTS = ["hello", "chair lift"]
GREEDY = ("--temperature", "0", "--max-tokens", "12", "--ignore-eos")


@pytest.fixture(scope="module")
def expected(model_folder: str) -> list[str]:
    llm = LLM(model_folder, threads=1, kv_cache_memory="8MiB")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return [output.outputs[0].text for output in llm.generate(PROMPTS, params)]


def test_a_single_prompt_streams_its_text_and_nothing_else(cli, small, expected) -> None:
    code, out, err = cli("generate", PROMPTS[0], *GREEDY, *small, "--quiet")
    assert (code, out) == (0, expected[0] + "\n")
    assert err.startswith("1 prompt, ") and "12 out" in err and "tokens/s" in err
    assert cli("generate", PROMPTS[0], *GREEDY, *small, "--no-stream")[1] == out


def test_several_prompts(cli, small, expected) -> None:
    code, out, err = cli("generate", *PROMPTS, *GREEDY, *small, "--quiet")
    assert code == 0
    assert out == f"[1] hello\n{expected[0]}\n\n[2] chair lift\n{expected[1]}\n"
    assert err.count("\n") == 1 and "24 out" in err


def test_json_lines(cli, small, expected) -> None:
    code, out, _ = cli("generate", *PROMPTS, *GREEDY, *small, "--json", "--logprobs", "1")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["prompt"] for line in lines] == PROMPTS
    assert [line["outputs"][0]["text"] for line in lines] == expected
    first = lines[0]["outputs"][0]
    assert first["finish_reason"] == "length" and len(first["token_ids"]) == 12
    assert len(first["logprobs"]) == 12 and lines[0]["prompt_logprobs"] is None


def test_prompt_logprobs_in_json(cli, small) -> None:
    _, out, _ = cli("generate", "hello", *GREEDY, *small, "--json", "--prompt-logprobs", "0")
    line = json.loads(out)
    assert line["prompt_logprobs"][0] is None
    assert len(line["prompt_logprobs"]) == line["num_prompt_tokens"]


def test_a_file_with_one_prompt_per_line(cli, small, expected, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(f"{PROMPTS[0]}\n\n{PROMPTS[1]}\n", encoding="utf-8")
    _, out, _ = cli("generate", "--file", str(path), *GREEDY, *small, "--json")
    assert [json.loads(line)["outputs"][0]["text"] for line in out.splitlines()] == expected


def test_a_file_that_is_no_text(cli, small, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xff\xfe")
    code, _, err = cli("generate", "--file", str(path), *small)
    assert code == 2 and "not UTF-8" in err


def test_a_dash_reads_standard_input(cli, small, expected, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert cli("generate", "-", *GREEDY, *small)[1] == expected[0] + "\n"


def test_several_completions_and_a_seed(cli, small) -> None:
    sampled = ("generate", "hello", "--n", "3", "--seed", "4", "--max-tokens", "8", *small)
    code, out, err = cli(*sampled, "--json")
    texts = [item["text"] for item in json.loads(out)["outputs"]]
    assert code == 0 and len(set(texts)) == 3 and "24 out" in err
    assert json.loads(cli(*sampled, "--json")[1])["outputs"][2]["text"] == texts[2]
    plain = cli(*sampled)[1]
    assert plain.startswith(f"(1) {texts[0]}") and f"(3) {texts[2]}" in plain


def test_the_start_tells_what_was_decided_unless_quiet(cli, small) -> None:
    _, out, err = cli("generate", "hello", *GREEDY, *small)
    assert "chairlift: KV cache 8 MiB" in err and "chairlift: 1 threads" in err
    assert "chairlift: fits" in err
    assert "chairlift:" not in cli("generate", "hello", *GREEDY, *small, "--quiet")[2]


def test_a_prompt_beyond_the_context_is_one_line(cli, small) -> None:
    code, out, err = cli("generate", "x" * 5000, *small, "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith("error: the prompt of ") and err.count("\n") == 1


def test_the_trace_is_written(cli, small, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    assert cli("generate", "hello", *GREEDY, *small, "--trace", str(trace))[0] == 0
    kinds = [json.loads(line)["kind"] for line in trace.read_text().splitlines()]
    assert kinds == ["prefill"] + ["decode"] * 11
