"""POST /v1/embeddings over sockets: forms, limits, company, and what happens when it goes wrong."""

from __future__ import annotations

import base64
import math
import socket
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from chairlift.pooling_params import PoolingParams
from chairlift.runner.pooling import RequestPoolingState
from chairlift.server import embedding
from chairlift.server.embedding import GROUP_PROMPTS, NUM_GROUPS, POLITE_SHARE
from engines import Job, make_engine, run_jobs
from http_harness import MODEL, Answer, RunningServer, request_bytes, scrape, until
from server_gate import Gate, LeapingClock

PATH = "/v1/embeddings"
HIDDEN = 64
CONTEXT = 256
LONG = [(7 * i) % 200 + 2 for i in range(120)]


def embed(server: RunningServer, value: Any, **options: Any) -> Answer:
    """With a salt of its own: others on a shared server look at what is cached."""
    headers = options.pop("headers", None)
    body = {"model": MODEL, "input": value, "cache_salt": "embeddings", **options}
    return server.post(PATH, body, headers=headers)


def in_background(function: Any, *arguments: Any, **named: Any) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments, **named)
    pool.shutdown(wait=False)
    return future


def vectors(answer: Answer) -> list[bytes]:
    """The float32 bytes of each input's vector, in order, whatever they are written as."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert list(body) == ["object", "data", "model", "usage"]
    assert body["object"] == "list" and body["model"] == MODEL
    assert [list(one) for one in body["data"]] == [["object", "index", "embedding"]] * len(
        body["data"]
    )
    assert [one["index"] for one in body["data"]] == list(range(len(body["data"])))
    found = []
    for one in body["data"]:
        value = one["embedding"]
        if isinstance(value, str):
            found.append(base64.b64decode(value, validate=True))
        else:
            assert all(type(number) is float for number in value)
            found.append(np.array(value, "<f4").tobytes())
        assert len(found[-1]) == 4 * HIDDEN
    return found


def ids_of(server: RunningServer, text: str) -> list[int]:
    ids: list[int] = server.post("/tokenize", {"prompt": text}).json["tokens"]
    return ids


# -- forms -------------------------------------------------------------------------------------
def test_every_form_of_input_gives_the_same_vectors(server: RunningServer) -> None:
    texts = ["abc", "defg hi", "j"]
    ids = [ids_of(server, text) for text in texts]
    expected = vectors(embed(server, texts))
    assert len(set(expected)) == 3
    assert vectors(embed(server, ids)) == expected
    for text, token_ids, vector in zip(texts, ids, expected, strict=True):
        assert vectors(embed(server, text)) == [vector]
        assert vectors(embed(server, [text])) == [vector]
        assert vectors(embed(server, token_ids)) == [vector]


def test_vectors_are_those_of_the_engine(server: RunningServer, load_tiny: Any) -> None:
    prompts = [LONG, [5], LONG[:40]]
    for kind in ("last", "mean"):
        for normalize in (True, False):
            params = PoolingParams(pooling_type=kind, normalize=normalize)
            jobs = [Job(prompt=prompt, pooling=params) for prompt in prompts]
            outputs = run_jobs(make_engine(load_tiny()), jobs)
            answer = embed(server, prompts, pooling_type=kind, normalize=normalize)
            expected = [out.embedding.tobytes() for out in outputs if out.embedding is not None]
            assert vectors(answer) == expected
    assert vectors(embed(server, prompts)) == vectors(embed(server, prompts, pooling_type="last"))


def test_base64_holds_the_same_bits(server: RunningServer) -> None:
    floats = embed(server, ["abc", "defg"], encoding_format="float")
    coded = embed(server, ["abc", "defg"], encoding_format="base64")
    assert isinstance(coded.json["data"][0]["embedding"], str)
    assert vectors(coded) == vectors(floats) == vectors(embed(server, ["abc", "defg"]))
    numbers = floats.json["data"][0]["embedding"]
    assert math.isclose(sum(number**2 for number in numbers), 1.0, abs_tol=1e-6)


def test_usage_counts_the_tokens_of_all_inputs(server: RunningServer) -> None:
    texts = ["abc", "a longer text"]
    usage = embed(server, texts).json["usage"]
    count = sum(len(ids_of(server, text)) for text in texts)
    assert usage == {"prompt_tokens": count, "total_tokens": count}


def test_usage_has_timings_where_the_server_tells(serve: Any) -> None:
    with serve(usage_timings=True) as server:
        timings = embed(server, "abc").json["usage"]["timings"]
    assert timings["prefill_ms"] > 0 and timings["decode_ms"] == 0


def test_dimensions_that_the_vectors_have_anyhow(server: RunningServer) -> None:
    assert vectors(embed(server, "abc", dimensions=HIDDEN)) == vectors(embed(server, "abc"))


def test_nulls_are_absent(server: RunningServer) -> None:
    names = (
        "dimensions", "encoding_format", "user", "pooling_type", "normalize", "priority",
        "truncate_prompt_tokens", "truncation_side", "timeout", "cache_salt", "messages",
    )  # fmt: skip
    answer = embed(server, "abc", **dict.fromkeys(names))
    assert vectors(answer) == vectors(embed(server, "abc"))
    assert "x-chairlift-ignored" not in answer.headers


# -- what changes nothing, and what cannot be honoured ------------------------------------------
def test_fields_that_change_nothing_are_named(server: RunningServer) -> None:
    answer = embed(server, "abc", user="me", novelty=1, truncation_side="left", priority=3)
    assert vectors(answer) == vectors(embed(server, "abc"))
    ignored = set(answer.headers["x-chairlift-ignored"].split(", "))
    assert ignored == {"user", "novelty", "truncation_side", "priority"}
    for fields in ({"use_activation": True}, {"embed_dtype": "float32"}, {"stream": False}):
        assert "x-chairlift-ignored" not in embed(server, "abc", **fields).headers


def test_a_strict_server_refuses_them(serve: Any) -> None:
    with serve(strict_fields=True) as server:
        answer = embed(server, "abc", user="me")
        assert answer.status == 400 and answer.error["param"] == "user"
        assert answer.error["code"] == "unknown_parameter"


TOO_LONG = [3] * (CONTEXT + 1)
BAD: list[tuple[dict[str, Any], str, str | None]] = [
    ({"input": ""}, "input", None),
    ({"input": ["a", ""]}, "input[1]", None),
    ({"input": []}, "input", None),
    ({"input": [[]]}, "input", None),
    ({"input": [[3], []]}, "input", None),
    ({"input": 5}, "input", None),
    ({"input": True}, "input", None),
    ({"input": {"text": "a"}}, "input", None),
    ({"input": [True]}, "input", None),
    ({"input": [1.5]}, "input", None),
    ({"input": ["a", 5]}, "input", None),
    ({"input": ["a", [5]]}, "input", None),
    ({"input": [["a"]]}, "input", None),
    ({"input": [None]}, "input", None),
    ({"input": [-1]}, "input", None),
    ({"input": [2**40]}, "input", None),
    ({"input": [256]}, "input", None),
    ({"input": [[3], [256]]}, "input[1]", None),
    ({"input": "a\udc80"}, None, "invalid_json"),  # type: ignore[list-item]
    ({"input": ["a"] * 2049}, "input", None),
    ({"input": [[3]] * 2049}, "input", None),
    ({"input": TOO_LONG}, "input", "context_length_exceeded"),
    ({"input": [[3], TOO_LONG]}, "input[1]", "context_length_exceeded"),
    ({"input": ["a", "a " * 700]}, "input[1]", "context_length_exceeded"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"model": "other"}, "model", "model_not_found"),
    ({"model": 5}, "model", None),
    ({"encoding_format": "hex"}, "encoding_format", None),
    ({"encoding_format": 5}, "encoding_format", None),
    ({"dimensions": 32}, "dimensions", "unsupported_parameter"),
    ({"dimensions": 65}, "dimensions", "unsupported_parameter"),
    ({"dimensions": 0}, "dimensions", None),
    ({"dimensions": "64"}, "dimensions", None),
    ({"dimensions": 2**40}, "dimensions", "integer_above_max_value"),
    ({"pooling_type": "cls"}, "pooling_type", None),
    ({"normalize": 1}, "normalize", None),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", None),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", None),
    ({"truncation_side": "middle"}, "truncation_side", None),
    ({"priority": 1.5}, "priority", None),
    ({"timeout": 0}, "timeout", None),
    ({"user": 5}, "user", None),
    ({"messages": []}, "messages", "unsupported_parameter"),
    ({"use_activation": False}, "use_activation", "unsupported_parameter"),
    ({"embed_dtype": "bfloat16"}, "embed_dtype", "unsupported_parameter"),
    ({"endianness": "big"}, "endianness", "unsupported_parameter"),
    ({"stream": True}, "stream", "unsupported_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD, ids=lambda value: repr(value)[:40])
def test_bad_input_is_named(
    server: RunningServer, fields: dict[str, Any], param: str | None, code: str | None
) -> None:
    answer = server.post(PATH, {"model": MODEL, "input": "abc", **fields})
    assert answer.status == (404 if code == "model_not_found" else 400), answer.body
    assert (answer.error["param"], answer.error["code"]) == (param, code), answer.error
    server.check_idle()


@pytest.mark.parametrize("path", ["/v1/embeddings/", "//v1//embeddings"])
def test_slashes_do_not_matter(server: RunningServer, path: str) -> None:
    assert server.post(path, {"model": MODEL, "input": "abc"}).status == 200


def test_another_verb(server: RunningServer) -> None:
    answer = server.get(PATH)
    assert answer.status == 405 and answer.error["code"] == "method_not_allowed"


# -- cutting -----------------------------------------------------------------------------------
def test_long_inputs_are_cut_where_that_is_asked_for(server: RunningServer) -> None:
    ids = [*range(2, 202), *range(2, 152)]
    assert len(ids) > CONTEXT
    first, last = vectors(embed(server, [ids[:9], ids[-9:]]))
    assert vectors(embed(server, ids, truncate_prompt_tokens=9)) == [first]
    side = {"truncation_side": "left"}
    assert vectors(embed(server, ids, truncate_prompt_tokens=9, **side)) == [last]
    whole, end = vectors(embed(server, [ids[:CONTEXT], ids[-CONTEXT:]]))
    for asked in (-1, CONTEXT, 10**6):
        assert vectors(embed(server, ids, truncate_prompt_tokens=asked)) == [whole]
    assert vectors(embed(server, ids, truncate_prompt_tokens=-1, **side)) == [end]
    assert embed(server, ids, truncate_prompt_tokens=9).json["usage"]["prompt_tokens"] == 9


def test_long_texts_are_cut_too(server: RunningServer) -> None:
    text = "".join(chr(ord("a") + i * 7 % 26) for i in range(900))
    ids = server.post("/tokenize", {"prompt": text[:200]}).json["tokens"]
    assert vectors(embed(server, text, truncate_prompt_tokens=20)) == vectors(
        embed(server, ids[:20])
    )
    ids = server.post("/tokenize", {"prompt": text[-200:]}).json["tokens"]
    cut = embed(server, text, truncate_prompt_tokens=20, truncation_side="left")
    assert vectors(cut) == vectors(embed(server, ids[-20:]))
    assert embed(server, text).error["code"] == "context_length_exceeded"


def test_short_inputs_stay_as_they_are(server: RunningServer) -> None:
    for value in ("abc", ["abc"], [3, 4, 5]):
        plain = vectors(embed(server, value))
        assert vectors(embed(server, value, truncate_prompt_tokens=100)) == plain
        assert vectors(embed(server, value, truncate_prompt_tokens=3)) == plain


# -- many --------------------------------------------------------------------------------------
NUM_INPUTS = 2048


def many(count: int = NUM_INPUTS) -> list[list[int]]:
    return [[2 + i % 250, 2 + i // 250, *range(2, 2 + i % 5)] for i in range(count)]


def test_2048_inputs_in_one_request(server: RunningServer) -> None:
    answer = embed(server, many(), encoding_format="base64", pooling_type="mean")
    found = vectors(answer)
    assert len(found) == NUM_INPUTS and len(set(found)) == NUM_INPUTS
    for index in (0, 95, 96, 1000, 2047):
        assert [found[index]] == vectors(embed(server, [many()[index]], pooling_type="mean"))
    assert answer.json["usage"]["prompt_tokens"] == sum(map(len, many()))
    server.check_idle()


def test_many_inputs_leave_a_stream_its_tokens_and_its_place_in_every_step(serve: Any) -> None:
    options = {"prompt": LONG, "max_tokens": 100, "ignore_eos": True, "seed": 7, "temperature": 1}
    with serve(engine={"max_num_batched_tokens": 64}) as server:
        expected = server.complete(**options).json["choices"][0]["text"]
        gate = Gate(server.engine)
        stream = in_background(server.complete, **options, stream=True)
        until(lambda: server.engine.scheduler.has_requests)
        vectors_of_all = in_background(embed, server, many(), encoding_format="base64")
        until(lambda: server.serving.admission.num_waiting >= NUM_GROUPS)
        begin = server.engine.core.recorder.records[-1].step_id
        gate.open()
        events = stream.result().events
        assert len(vectors(vectors_of_all.result())) == NUM_INPUTS
        records = [r for r in server.engine.core.recorder.records if r.step_id > begin]
    text = "".join(event["choices"][0]["text"] for event in events[:-1] if event["choices"])
    assert text == expected
    streaming = [r for r in records if any(m.request_id.startswith("cmpl") for m in r.members)]
    first, last = streaming[0].step_id, streaming[-1].step_id
    assert len(streaming) == last - first + 1, "a step left the stream out"
    shared = [r for r in streaming if any(m.request_id.startswith("embd") for m in r.members)]
    assert shared, "the two never met"
    assert max(r.num_prefill_tokens for r in shared if r is not streaming[0]) <= len(LONG)


def test_many_inputs_do_not_fill_the_queue(serve: Any) -> None:
    """A request of thousands holds a few places, and gives them to the rest of its own."""
    num_places = NUM_GROUPS * GROUP_PROMPTS
    with serve(max_queued_requests=num_places + 1) as server:
        gate = Gate(server.engine)
        all_vectors = in_background(embed, server, many(), encoding_format="base64")
        until(lambda: server.serving.admission.num_waiting == num_places)
        newcomer = in_background(server.complete, "abc")
        until(lambda: server.serving.admission.num_waiting == num_places + 1)
        assert embed(server, "abc").error["code"] == "queue_full"
        gate.open()
        assert newcomer.result().status == 200
        assert len(vectors(all_vectors.result())) == NUM_INPUTS
        server.check_idle()


def test_groups_are_small_while_others_are_served(serve: Any) -> None:
    num_tokens = 512

    def largest_step(server: RunningServer) -> int:
        records = server.engine.core.recorder.records
        return max(
            sum(m.num_new_tokens for m in r.members if m.request_id.startswith("embd"))
            for r in records
        )

    inputs = [[2 + i % 250, *range(2, 2 + i // 250), 7, 7] for i in range(1000)]
    with serve(engine={"max_num_batched_tokens": num_tokens, "max_num_seqs": 300}) as server:
        gate = Gate(server.engine)
        stream = in_background(server.complete, "abc", max_tokens=200, ignore_eos=True)
        until(lambda: server.engine.scheduler.has_requests)
        found = in_background(embed, server, inputs[:150], encoding_format="base64")
        until(lambda: server.serving.admission.num_waiting > NUM_GROUPS)
        gate.let(1)
        until(lambda: len(server.engine.core.recorder.records) == 1)
        longest = max(map(len, inputs))
        assert largest_step(server) <= NUM_GROUPS * (num_tokens // POLITE_SHARE + longest)
        gate.open()
        assert len(vectors(found.result())) == 150 and stream.result().status == 200
        until(lambda: server.serving.lifecycle.num_in_flight == 0)
        gate = Gate(server.engine)
        found = in_background(embed, server, inputs, encoding_format="base64")
        until(lambda: server.serving.admission.num_waiting == NUM_GROUPS * GROUP_PROMPTS)
        gate.open()
        assert len(vectors(found.result())) == 1000
        assert largest_step(server) > NUM_GROUPS * (num_tokens // POLITE_SHARE + longest)


def test_what_was_let_in_is_not_turned_away_later(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is full again when the rest of its inputs come."""
    monkeypatch.setattr(embedding, "POLITE_SHARE", 1)
    num_places = NUM_GROUPS * GROUP_PROMPTS
    with serve(engine={"max_num_seqs": 32}, max_queued_requests=num_places) as server:
        gate = Gate(server.engine)
        waiting = server.serving.admission
        all_vectors = in_background(embed, server, many(600), encoding_format="base64")
        until(lambda: waiting.num_waiting == num_places)
        gate.let(1)
        until(lambda: gate.num_steps == 1 and waiting.num_waiting == num_places - 32)
        others = in_background(server.complete, ["abc"] * 32, max_tokens=1)
        until(lambda: waiting.num_waiting == num_places)
        gate.let(2)
        until(lambda: waiting.num_waiting > num_places)
        gate.open()
        assert len(vectors(all_vectors.result())) == 600
        assert others.result().status == 200
        server.check_idle()


def test_an_engine_with_few_seats_and_little_memory_ends_them_all(serve: Any) -> None:
    with serve(engine={"max_num_seqs": 3, "num_blocks": 20, "num_swap_blocks": 5}) as server:
        prompts = [LONG[: 5 + i % 110] for i in range(300)]
        kinds = [vectors(embed(server, prompts, pooling_type=kind)) for kind in ("last", "mean")]
        for found, kind in zip(kinds, ("last", "mean"), strict=True):
            assert [found[250]] == vectors(embed(server, prompts[250], pooling_type=kind))
        server.check_idle()


# -- who may, how long, and what if ------------------------------------------------------------
def test_a_full_queue_turns_it_away(serve: Any) -> None:
    with serve(engine={"max_num_seqs": 1}, max_queued_requests=2) as server:
        gate = Gate(server.engine)
        others = [in_background(server.complete, "abc") for _ in range(2)]
        until(lambda: server.serving.admission.num_waiting == 2)
        answer = embed(server, "abc")
        assert answer.status == 429 and answer.error["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
        gate.open()
        assert [other.result().status for other in others] == [200, 200]
        server.check_idle()


def test_it_is_turned_away_as_a_whole(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is let in if the first of its inputs are not, even where there is room."""
    with serve(engine={"max_num_seqs": 1}, max_queued_requests=20) as server:
        gate = Gate(server.engine)
        other = in_background(server.complete, "abc")
        until(lambda: server.serving.admission.num_waiting == 1)
        monkeypatch.setattr(embedding, "POLITE_SHARE", 1)
        let_in: list[Any] = []
        monkeypatch.setattr(server.serving.metrics, "request_admitted", let_in.extend)
        answer = embed(server, many(GROUP_PROMPTS + 4))
        assert answer.status == 429 and not let_in
        monkeypatch.undo()
        gate.open()
        assert other.result().status == 200
        server.check_idle()


def test_keys_are_told_apart(serve: Any) -> None:
    with serve(api_key=("one", "two")) as server:
        assert embed(server, "abc").status == 401
        answers = [
            embed(server, "abc", headers={"authorization": f"Bearer {key}"})
            for key in ("one", "two", "one")
        ]
        assert len({vector for answer in answers for vector in vectors(answer)}) == 1
        usages = {record.members for record in server.engine.core.recorder.records}
        assert len(usages) == 3
        samples = scrape(server, headers={"authorization": "Bearer one"})
        assert samples["chairlift:key_prompt_tokens_total"] == {("key-1",): 6, ("key-2",): 3}


@pytest.mark.parametrize("count", [1, 1000])
def test_its_time_runs_out(serve: Any, count: int) -> None:
    with serve(engine={"max_num_seqs": 2}) as server:
        gate, clock = Gate(server.engine), LeapingClock(server)
        answer = in_background(embed, server, many(count), timeout=100.0)
        until(lambda: server.serving.admission.num_waiting > 0)
        clock.ahead_s = 200.0
        gate.open()
        late = answer.result()
        assert late.status == 504 and late.error["code"] == "deadline_exceeded"
        server.check_idle()


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_a_client_that_goes_takes_its_inputs_with_it_within_a_step(serve: Any, count: int) -> None:
    with serve(engine={"max_num_seqs": 4, "long_prefill_token_threshold": 8}) as server:
        gate = Gate(server.engine)
        connection = server.connect()
        body = {"model": MODEL, "input": [LONG] * count}
        connection.sendall(request_bytes(PATH, body))
        until(lambda: bool(server.engine.scheduler.requests))
        gate.let(2)
        until(lambda: gate.num_steps == 2)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        until(lambda: server.serving.lifecycle.num_in_flight == 0)
        gate.let(1)
        until(lambda: not server.engine.scheduler.requests)
        assert gate.num_steps <= 3
        gate.open()
        server.check_idle()


def test_a_fault_in_one_input_is_that_requests_error_only(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = RequestPoolingState.push

    def spoil(self: RequestPoolingState, rows: Any, end: int) -> array[float] | None:
        if end == 77:
            raise FloatingPointError("spoilt")
        return push(self, rows, end)

    with serve() as server:
        expected = vectors(embed(server, "abc"))
        monkeypatch.setattr(RequestPoolingState, "push", spoil)
        gate = Gate(server.engine)
        other = in_background(embed, server, "abc")
        faulty = in_background(embed, server, [[3, 4, 5]] * 400 + [[3] * 77] + [[3, 4]] * 400)
        until(lambda: server.serving.admission.num_waiting > NUM_GROUPS)
        gate.open()
        answer = faulty.result()
        assert answer.status == 500 and answer.error["code"] == "internal_error"
        assert "spoilt" not in answer.error["message"]
        assert vectors(other.result()) == expected
        server.check_idle()
        assert vectors(embed(server, "abc")) == expected


def test_an_engine_that_stops_answers_503(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        answer = in_background(embed, server, many(600))
        until(lambda: server.serving.admission.num_waiting > GROUP_PROMPTS)
        gate.fault = RuntimeError("the machine is on fire")
        gate.let(1)
        failed = answer.result()
        assert failed.status == 503 and failed.error["code"] == "engine_restarting"
        until(lambda: len(server.engines) == 2 and server.serving.supervisor.state == "running")
        assert embed(server, "abc").status == 200
        server.check_idle()


# -- what is counted and told -------------------------------------------------------------------
def test_it_is_counted(serve: Any) -> None:
    with serve() as server:
        embed(server, [[3, 4, 5], [6, 7]])
        embed(server, "")
        until(lambda: scrape(server)["chairlift:requests_finished_total"][("stop",)] == 2)
        samples = scrape(server)
    assert samples["chairlift:http_requests_total"]["embeddings", "200"] == 1
    assert samples["chairlift:http_requests_total"]["embeddings", "400"] == 1
    assert samples["chairlift:prompt_tokens_total"][()] == 5
    assert samples["chairlift:generation_tokens_total"][()] == 0
    assert samples["chairlift:time_to_first_token_seconds_count"][()] == 0
    assert samples["chairlift:e2e_latency_seconds_count"][()] == 2


def test_the_document_has_it(server: RunningServer) -> None:
    document = server.get("/openapi.json").json
    operation = document["paths"][PATH]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/EmbeddingRequest"}
    properties = document["components"]["schemas"]["EmbeddingRequest"]["properties"]
    assert properties["input"]["anyOf"][1]["maxItems"] == 2048
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"$ref": "#/components/schemas/EmbeddingList"}


def test_prompts_are_logged_where_that_is_asked_for(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(log_prompts=True) as server, caplog.at_level("INFO", "chairlift"):
        embed(server, ["a secret", "another"])
    assert sum("secret" in record.getMessage() for record in caplog.records) == 1


# -- unmodified clients -------------------------------------------------------------------------
@pytest.fixture
def client(server: RunningServer) -> Any:
    import openai

    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def test_openai_client_with_its_default_encoding(server: RunningServer, client: Any) -> None:
    """It asks for base64 by itself and hands out lists of floats."""
    answer = client.embeddings.create(model=MODEL, input=["abc", "defg"])
    assert [item.index for item in answer.data] == [0, 1]
    expected = vectors(embed(server, ["abc", "defg"]))
    assert [np.array(item.embedding, "<f4").tobytes() for item in answer.data] == expected
    assert answer.model == MODEL and answer.usage.prompt_tokens == 7


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("value", ["abc", [3, 4, 5], [[3, 4, 5], [6]]], ids=repr)
def test_openai_client_with_every_form(
    server: RunningServer, client: Any, value: Any, encoding: str
) -> None:
    answer = client.embeddings.create(
        model=MODEL, input=value, encoding_format=encoding, dimensions=HIDDEN, user="me"
    )
    found = [
        base64.b64decode(item.embedding)
        if isinstance(item.embedding, str)
        else np.array(item.embedding, "<f4").tobytes()
        for item in answer.data
    ]
    assert found == vectors(embed(server, value))


def test_openai_client_reads_the_errors(client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="abc", dimensions=3)
    assert (caught.value.param, caught.value.code) == ("dimensions", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="abc")
