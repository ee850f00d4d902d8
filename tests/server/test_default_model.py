"""The default model over HTTP says what it says offline, in any company."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs
from http_harness import Answer, serving_engine

MESSAGES = [
    [{"role": "user", "content": "Name three colours."}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Why is it?"}],
    [{"role": "user", "content": "Schreibe auf Deutsch: Guten Morgen 😀"}],
    [{"role": "user", "content": "日本語で挨拶してください。"}],
]
NUM_TOKENS = 24


@pytest.mark.real_model
@pytest.mark.timeout(300)
def test_thousand_combining_marks_stay_as_they_are(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    text = "e" + "\u0301" * 1000
    with serving_engine(lambda: make_engine(load_default_model("native"))) as server:
        fields = {"model": "tiny", "prompt": text, "max_tokens": 1, "echo": True}
        answer = server.post("/v1/completions", fields, timeout_s=200)
        assert answer.status == 200 and answer.json["choices"][0]["text"].startswith(text)
        server.check_idle()


@pytest.mark.real_model
@pytest.mark.timeout(300)
def test_text_over_http_is_the_text_offline(
    load_default_model: Callable[[str], LoadedModel],
) -> None:
    model = load_default_model("native")
    assert model.chat_template is not None
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    jobs = [Job(prompt=model.chat_template.render(m), params=params) for m in MESSAGES]
    expected = [output.outputs[0] for output in run_jobs(make_engine(model), jobs)]

    with serving_engine(lambda: make_engine(model)) as server:

        def ask(messages: Any, is_streaming: bool) -> Answer:
            return server.post(
                "/v1/chat/completions",
                {
                    "model": "tiny", "messages": messages, "temperature": 0,
                    "max_tokens": NUM_TOKENS, "stream": is_streaming,
                },
                timeout_s=200,
            )  # fmt: skip

        with ThreadPoolExecutor(8) as pool:
            whole = [pool.submit(ask, messages, False) for messages in MESSAGES]
            streamed = [pool.submit(ask, messages, True) for messages in MESSAGES]
        server.check_idle()
    for future, completion in zip(whole, expected, strict=True):
        choice = future.result().json["choices"][0]
        assert choice["message"]["content"] == completion.text
        assert choice["finish_reason"] == completion.finish_reason
    for future, completion in zip(streamed, expected, strict=True):
        deltas = [event["choices"][0]["delta"] for event in future.result().events[:-1]]
        assert "".join(delta.get("content", "") for delta in deltas) == completion.text
