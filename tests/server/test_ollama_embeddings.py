"""POST /api/embed and the older /api/embeddings over real sockets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chairlift.server.protocol.ollama import OllamaEmbedAnswer
from http_harness import Answer, RunningServer, until
from server_gate import Gate

EMBED, OLDER = "/api/embed", "/api/embeddings"


def embed(server: RunningServer, input: Any, **fields: Any) -> Answer:
    headers = fields.pop("headers", None)
    return server.post(EMBED, {"model": "tiny", "input": input, **fields}, headers=headers)


def openai(server: RunningServer, input: Any, **fields: Any) -> list[list[float]]:
    body = {"model": "tiny", "input": input, "encoding_format": "float", **fields}
    return [item["embedding"] for item in server.post("/v1/embeddings", body).json["data"]]


def fault(answer: Answer) -> str:
    assert answer.status >= 400 and list(answer.json) == ["error"], answer.body
    return str(answer.json["error"])


@pytest.fixture
def same_vectors(server: RunningServer) -> Iterator[None]:
    before = embed(server, "control").json["embeddings"]
    yield
    assert embed(server, "control").json["embeddings"] == before
    server.check_idle()


def test_vectors_are_those_of_openais_endpoint(server: RunningServer) -> None:
    texts = ["one", "two 日本", "three"]
    answer = embed(server, texts).json
    assert answer["embeddings"] == openai(server, texts)
    assert all(math.isclose(sum(x * x for x in v), 1, rel_tol=1e-5) for v in answer["embeddings"])
    assert answer["model"] == "tiny" and answer["load_duration"] == 0
    usage = server.post("/v1/embeddings", {"model": "tiny", "input": texts}).json["usage"]
    assert answer["prompt_eval_count"] == usage["prompt_tokens"] and answer["total_duration"] > 0
    assert embed(server, "one", model="tiny:latest").json["embeddings"] == openai(server, "one")


def test_many_vectors_go_out_in_parts(server: RunningServer) -> None:
    texts = [f"text {index}" for index in range(300)]
    answer = embed(server, texts)
    assert len(answer.body) > 2 * 64 * 1024
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.json["embeddings"] == openai(server, texts)
    shape = ["model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"]
    assert list(answer.json) == shape == list(OllamaEmbedAnswer.model_fields)


def test_older_endpoint_gives_one_vector_as_it_is(server: RunningServer) -> None:
    vector = server.post(OLDER, {"model": "tiny", "prompt": "one"}).json["embedding"]
    assert [vector] == openai(server, "one", normalize=False)
    assert server.post(OLDER, {"model": "tiny"}).json == {"embedding": []}


def test_nothing_to_embed_is_a_request_to_load(server: RunningServer) -> None:
    for input in ([], "", None):
        answer = embed(server, input, keep_alive="5m")
        assert answer.status == 200 and answer.json["embeddings"] == []
        assert embed(server, input, model="other").status == 404


def test_long_inputs_are_cut_unless_that_is_not_wanted(server: RunningServer) -> None:
    long = "a b " * 1000
    vectors = embed(server, ["one", long]).json["embeddings"]
    assert vectors == openai(server, ["one", long], truncate_prompt_tokens=-1)
    answer = embed(server, ["one", long], truncate=False)
    assert answer.status == 400 and "input[1]" in fault(answer)
    older = server.post(OLDER, {"model": "tiny", "prompt": long})
    assert older.status == 400 and "prompt" in fault(older)


def test_fields_of_embed_without_effect_are_named(server: RunningServer) -> None:
    answer = embed(server, "one", keep_alive="5m", novelty=1, options={"num_ctx": 8, "seed": 1})
    assert answer.status == 200 and set(answer.headers["x-chairlift-ignored"].split(", ")) == {
        "keep_alive", "novelty", "options.num_ctx", "options.seed"
    }  # fmt: skip
    dimensions = len(openai(server, "one")[0])
    fitting = embed(server, "one", dimensions=dimensions)
    assert fitting.status == 200 and "x-chairlift-ignored" not in fitting.headers


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": None}, "model is required"),
        ({"input": 1}, "input"),
        ({"input": [1]}, "input"),
        ({"input": [["a"]]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"dimensions": 3}, "dimensions"),
        ({"dimensions": -1}, "dimensions"),
        ({"truncate": "yes"}, "truncate"),
        ({"options": {"num_ctx": 10**6}}, "options.num_ctx"),
        ({"options": []}, "options"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)
def test_bad_field_of_embed_is_named(
    server: RunningServer, same_vectors: None, fields: dict[str, Any], said: str
) -> None:
    answer = server.post(EMBED, {"model": "tiny", "input": "a", **fields})
    assert answer.status == 400 and said in fault(answer), answer.body


def test_bad_prompt_of_the_older_endpoint(server: RunningServer, same_vectors: None) -> None:
    for prompt in (1, ["a"], {}):
        answer = server.post(OLDER, {"model": "tiny", "prompt": prompt})
        assert answer.status == 400 and "prompt" in fault(answer)


def test_embed_in_a_full_queue_and_without_a_key(serve: Any) -> None:
    with serve(max_queued_requests=1, engine={"max_num_seqs": 1}, api_key=("k",)) as server:
        headers = {"authorization": "Bearer k"}
        assert embed(server, "a").status == 401 and fault(embed(server, "a"))
        gate = Gate(server.engine)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(embed, server, "a", headers=headers)
            until(lambda: server.serving.admission.num_waiting == 1)
            answer = embed(server, "b", headers=headers)
            assert answer.status == 429 and fault(answer) and "retry-after" in answer.headers
            gate.open()
            assert running.result().status == 200
        text = server.get("/metrics", headers=headers).body.decode()
        assert 'http_requests_total{endpoint="ollama_embed",status="200"} 1.0' in text
