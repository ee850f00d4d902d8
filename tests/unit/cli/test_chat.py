"""`chairlift chat` with piped input, on a tiny model."""

from __future__ import annotations

import io
import os
import signal

import pytest

from chairlift.cli.chat import _Interrupt
from chairlift.engine.llm import LLM
from chairlift.sampling_params import SamplingParams

GREEDY = ("--temperature", "0", "--max-tokens", "10", "--ignore-eos")


@pytest.fixture(scope="module")
def llm(model_folder: str) -> LLM:
    return LLM(model_folder, threads=1, kv_cache_memory="8MiB")


def _answer(llm: LLM, *turns: str, system: str | None = None) -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    return llm.chat(messages, params)[0].outputs[0].text


def _chat(cli, small, monkeypatch, text: str, *options: str):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return cli("chat", *GREEDY, *small, *options)


def test_it_remembers_the_conversation(cli, small, monkeypatch, llm) -> None:
    first = _answer(llm, "hi")
    second = _answer(llm, "hi", first, "more")
    code, out, err = _chat(cli, small, monkeypatch, "hi\n\nmore\n")
    assert (code, out, err) == (0, f"{first}\n{second}\n", "")
    assert second != _answer(llm, "more")


def test_reset_and_exit(cli, small, monkeypatch, llm) -> None:
    code, out, _ = _chat(cli, small, monkeypatch, "hi\n/reset\nmore\n/exit\nnever\n")
    assert code == 0
    assert out == f"{_answer(llm, 'hi')}\n{_answer(llm, 'more')}\n"


def test_a_system_message_stays_after_reset(cli, small, monkeypatch, llm) -> None:
    _, out, _ = _chat(cli, small, monkeypatch, "hi\n/reset\nhi\n", "--system", "Be brief.")
    answer = _answer(llm, "hi", system="Be brief.")
    assert out == f"{answer}\n{answer}\n" and answer != _answer(llm, "hi")


def test_an_unknown_command_is_not_sent(cli, small, monkeypatch) -> None:
    code, out, err = _chat(cli, small, monkeypatch, "/what now\n")
    assert (code, out) == (0, "") and "unknown command /what" in err


def test_a_message_that_is_too_long_leaves_the_conversation_as_it_was(
    cli, small, monkeypatch, llm
) -> None:
    code, out, err = _chat(cli, small, monkeypatch, f"{'x' * 4000}\nhi\n")
    assert (code, out) == (0, _answer(llm, "hi") + "\n")
    assert err.startswith("error: the prompt of ") and "/reset" in err


def test_a_model_without_a_template_is_refused(cli, small, monkeypatch) -> None:
    monkeypatch.setattr("chairlift.engine.loaded_model._chat_template", lambda tokenizer: None)
    code, _, err = _chat(cli, small, monkeypatch, "hi\n")
    assert code == 2 and "no chat template" in err


def test_ctrl_c_stops_the_answer_and_not_the_program(cli, small, monkeypatch, llm) -> None:
    shown: list[str] = []

    def show_and_interrupt(text: str, end: str = "\n", stream: object = None) -> None:
        shown.append(text + end)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("chairlift.cli.terminal.show", show_and_interrupt)
    code, _, _ = _chat(cli, small, monkeypatch, "hi\n/reset\nmore\n")
    answers = "".join(shown).split("\n")
    assert code == 0
    assert answers[0] and _answer(llm, "hi").startswith(answers[0]) and len(shown) > 5
    assert answers[0] != _answer(llm, "hi") and answers[1] == _answer(llm, "more")


def test_the_handler_of_ctrl_c_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.is_set
    assert signal.getsignal(signal.SIGINT) is before
