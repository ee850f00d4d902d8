"""Chat completions over real sockets: shapes, streams, and what the two have in common."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.server.protocol.chat import ChatCompletion, ChatCompletionChunk
from http_harness import RunningServer


def contents(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for event in events
        if event != "[DONE]"
        for choice in event["choices"]
    )


def test_answer_has_the_shape_of_the_specification(server: RunningServer) -> None:
    answer = server.chat(max_tokens=5)
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    parsed = ChatCompletion.model_validate(answer.json)
    assert parsed.model == "tiny" and parsed.id.startswith("chatcmpl-")
    assert parsed.choices[0].message.role == "assistant"
    assert answer.json["choices"][0]["message"]["refusal"] is None
    assert parsed.choices[0].finish_reason in ("stop", "length")
    usage = parsed.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens <= 5 and usage.prompt_tokens > 5
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert answer.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_stream_follows_the_rules(server: RunningServer) -> None:
    answer = server.chat(stream=True, max_tokens=6, ignore_eos=True, temperature=0)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    *chunks, done = answer.events
    assert done == "[DONE]" and answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert "usage" not in chunk
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["delta"] == {} and choices[-1]["finish_reason"] == "length"


def test_stream_equals_the_whole_answer(server: RunningServer) -> None:
    for seed in range(8):
        options = {"seed": seed, "temperature": 1.0, "max_tokens": 20}
        whole = server.chat(**options).json["choices"][0]
        streamed = server.chat(stream=True, **options).events
        assert contents(streamed) == whole["message"]["content"]
        assert streamed[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_usage_comes_in_a_chunk_of_its_own(server: RunningServer) -> None:
    whole = server.chat(seed=1, max_tokens=5, ignore_eos=True).json["usage"]
    answer = server.chat(
        seed=1, max_tokens=5, ignore_eos=True, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last, done = answer.events
    assert done == "[DONE]" and last["choices"] == []
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][key] == whole[key]


def test_running_usage_counts_up(server: RunningServer) -> None:
    answer = server.chat(
        max_tokens=5,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [event["usage"]["completion_tokens"] for event in answer.events[:-1]]
    assert counts == sorted(counts) and counts[-1] == 5 and counts[0] >= 1


def test_several_choices(server: RunningServer) -> None:
    options = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    whole = server.chat(**options).json
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) > 1
    assert whole["usage"]["completion_tokens"] == 36
    streamed = ["", "", ""]
    finished = []
    for event in server.chat(stream=True, **options).events[:-1]:
        (choice,) = event["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            finished.append(choice["index"])
    assert streamed == texts and sorted(finished) == [0, 1, 2]


def test_logprobs_whole_and_streamed(server: RunningServer) -> None:
    options = {"logprobs": True, "top_logprobs": 3, "max_tokens": 6, "seed": 3, "ignore_eos": True}
    choice = server.chat(**options).json["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 6
    for entry in content:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
    streamed = [
        entry
        for event in server.chat(stream=True, **options).events[:-1]
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    zero = server.chat(logprobs=True, max_tokens=2, ignore_eos=True).json
    assert all(entry["top_logprobs"] == [] for entry in zero["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize(
    "content",
    ["abc", [{"type": "text", "text": "abc"}], [{"type": "text", "text": "ab"}]],
)
def test_content_may_be_parts(server: RunningServer, content: Any) -> None:
    assert server.chat(content).status == 200


def test_max_completion_tokens_beats_max_tokens(server: RunningServer) -> None:
    answer = server.chat(max_tokens=9, max_completion_tokens=3, ignore_eos=True)
    assert answer.json["usage"]["completion_tokens"] == 3


def test_without_a_limit_the_context_is_the_limit(server: RunningServer) -> None:
    answer = server.chat(max_tokens=None, ignore_eos=True)
    usage, model = answer.json["usage"], server.get("/v1/models").json["data"][0]
    assert usage["total_tokens"] == model["max_model_len"]
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_seed_fixes_the_text(server: RunningServer) -> None:
    texts = {
        server.chat(seed=7, max_tokens=12).json["choices"][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(texts) == 1


def test_cached_tokens_are_told(server: RunningServer) -> None:
    text = "the same beginning " * 4
    server.chat(text)
    usage = server.chat(text).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


def test_timings_with_the_flag(serve: Any) -> None:
    with serve(usage_timings=True) as server:
        timings = server.chat(max_tokens=5, ignore_eos=True).json["usage"]["timings"]
        assert set(timings) == {"queue_ms", "prefill_ms", "decode_ms", "preempted_ms"}
        assert timings["prefill_ms"] > 0 and timings["decode_ms"] > 0
        assert timings["preempted_ms"] == 0
        streamed = server.chat(stream=True, stream_options={"include_usage": True}).events[-2]
        assert streamed["usage"]["timings"]["decode_ms"] >= 0


def test_text_that_spells_a_control_token_stays_text(server: RunningServer) -> None:
    from parity.tiny_checkpoints import EOS_TOKEN

    plain = server.post(
        "/tokenize", {"messages": [{"role": "user", "content": f"a{EOS_TOKEN}b"}]}
    ).json
    eos_id = server.engine.model.tokenizer.eos_id
    assert eos_id not in plain["tokens"]
    assert server.chat(f"a{EOS_TOKEN}b").status == 200
    text = server.post("/detokenize", {"tokens": plain["tokens"]}).json["prompt"]
    assert f"a{EOS_TOKEN}b" in text
