"""`chairlift bench serve` from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripted_server import Exchange, ScriptedServer, serving, tokens

PNG_MAGIC = b"\x89PNG\r\n"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(tokens(gap_s=0.002)) as server:
        yield server


@pytest.fixture
def bench_serve(cli, server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*options: str):
        small = ("--num-prompts", "5", "--input-len", "8", "--output-len", "4")
        return cli("bench", "serve", "--base-url", server.base_url, *small, *options)

    return run


def test_a_report_and_its_files(bench_serve, tmp_path: Path) -> None:
    code, out, err = bench_serve(
        *("--max-concurrency", "2", "--goodput", "ttft:9000", "tpot:9000", "e2el:9000"),
        *("--output-json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.png")),
        "--save-detailed",
    )
    assert code == 0 and "\x1b" not in out
    assert "closed loop, 2 clients" in out and "random ids, 8 in, 4 out, seed 0" in out
    assert "5 completed, 0 failed" in out and "5 of 5 (100.0%)" in out
    assert "counted by usage" in out and "of a core" in out
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        assert name in out
    assert "5 requests to" in err
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["completed"] == 5 and len(content["requests"]) == 5
    assert content["config"]["goodput"] == ["ttft:9000", "tpot:9000", "e2el:9000"]
    assert (tmp_path / "r.png").read_bytes().startswith(PNG_MAGIC)


def test_one_at_a_time_is_called_the_limit(bench_serve) -> None:
    _, out, _ = bench_serve("--max-concurrency", "1")
    assert "it sends one at a time, and no setting of the server helps" in out


def test_save_result_names_the_file_after_the_run(bench_serve, tmp_path: Path) -> None:
    code, out, _ = bench_serve(
        "--request-rate", "100", "--save-result", "--result-dir", str(tmp_path)
    )
    (path,) = tmp_path.iterdir()
    assert code == 0 and f"wrote {path}" in out
    assert path.name.startswith("chairlift-100qps-scripted-") and path.suffix == ".json"
    assert json.loads(path.read_text())["request_rate"] == 100.0


def test_the_key_comes_from_the_option_or_the_environment(
    bench_serve, server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_serve()
    assert "authorization" not in server.seen[-1].headers
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    bench_serve()
    assert server.seen[-1].headers["authorization"] == "Bearer from-environment"
    bench_serve("--api-key", "from-option")
    assert server.seen[-1].headers["authorization"] == "Bearer from-option"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--goodput", "ttft:soon"), "goodput takes"),
        (("ttft:500",), "unexpected argument 'ttft:500'"),
        (("--request-rate", "-1"), "request_rate must be above 0"),
        (("--request-rate", "fast"), "--request-rate"),
        (("--input-len", "none"), "input_len takes"),
        (("--dataset-name", "timed_trace"), "dataset_path is needed"),
        (("--output-json", "/no/such/folder/r.json"), "there is no folder"),
        (("--plot", "/no/such/folder/r.png"), "there is no folder"),
        (("--save-result", "--result-dir", "/no/such/folder"), "there is no folder"),
        (("--save-detailed",), "save_detailed needs"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_sent(
    bench_serve, server, options: tuple[str, ...], message: str
) -> None:
    code, out, err = bench_serve(*options)
    assert (code, out) == (2, "") and err.count("\n") == 1 and message in err
    assert not server.seen


def test_no_server(cli) -> None:
    with serving(tokens()) as server:
        pass
    code, out, err = cli("bench", "serve", "--base-url", server.base_url)
    assert (code, out) == (2, "") and "no server is ready" in err and err.count("\n") == 1


def test_when_nothing_succeeds_the_exit_code_says_so(bench_serve, server, tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.headers["x-request-id"].startswith("bench-"):
            await exchange.answer({"error": {"message": "full"}}, 429)
        else:
            await tokens()(exchange)

    server.script = script
    code, out, _ = bench_serve("--plot", str(tmp_path / "r.png"))
    assert code == 1 and "0 completed, 5 failed" in out and "http_429" in out
    assert (tmp_path / "r.png").read_bytes().startswith(PNG_MAGIC)
