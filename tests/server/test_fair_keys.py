"""Several API keys: shares of the engine and of the queue, however greedy one is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chairlift.errors import ConfigError
from chairlift.sampling_params import SamplingParams
from chairlift.server.admission import BoundedQueue
from chairlift.server.arrival import Arrival
from chairlift.server.auth import KeyRing, read_keys
from chairlift.server.errors import ApiError
from chairlift.server.queue_room import QueueLimits
from chairlift.server.server_config import ServerConfig
from chairlift.server.server_metrics import MAX_KEYS, ServerMetrics
from http_harness import RunningServer, scrape, until
from server_gate import Gate
from tenant_load import jain_index

GREEDY, POLITE = "sk-greedy-secret", "sk-polite-secret"
KEYS = f"greedy {GREEDY}\npolite {POLITE}\n"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return str(path)


def keys_of(path: Path, text: str, **options: Any) -> KeyRing:
    path.write_text(text)
    return read_keys(ServerConfig(api_key_file=str(path), **options))


# -- what is written in the key file -------------------------------------------------------------
def test_weights_and_priorities_of_keys(tmp_path: Path) -> None:
    ring = keys_of(
        tmp_path / "keys",
        "# a comment\nk1\nteam k2 weight=3 priority=-2\nk3 weight=5\nbatch k4\n",
        api_key=("k0",),
        key_weight=("batch=7", "key-1=2"),
    )
    assert ring.weights == {"key-1": 2, "key-2": 1, "team": 3, "key-4": 5, "batch": 7}
    assert ring.owner({b"authorization": b"Bearer k3"}) == "key-4"
    assert ring.best_priority("team") == -2 and ring.best_priority("batch") == 0
    assert keys_of(tmp_path / "one", "k1\n").best_priority("key-1") is None, "nobody to pass"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a k weight=0", "weight must be an integer between 1 and 10000"),
        ("a k weight=two", "weight must be"),
        ("a k weight=1e3", "weight must be"),
        ("a k priority=99999", "priority must be"),
        ("a k share=3", "may end in weight=N"),
        ("a b c", "may end in weight=N"),
        ("na/me k", "the name of a key"),
        ("a k\na l", "differ"),
    ],
)
def test_key_file_with_a_mistake_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        keys_of(tmp_path / "keys", text)


@pytest.mark.parametrize("text", ["nobody=2", "batch", "=2", "batch=0", "batch=x"])
def test_weight_of_no_key_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys_of(tmp_path / "keys", "batch k\n", key_weight=(text,))
    assert caught.value.field == "key_weight"


# -- the engine ----------------------------------------------------------------------------------
def test_greedy_key_does_not_starve_a_polite_one(serve: Any, key_file: str) -> None:
    """Forty requests of one key are open all the time, four of the other; both get the same."""
    with serve(api_key_file=key_file, engine={"max_num_seqs": 4}) as server:
        is_over = threading.Event()

        def ask(key: str) -> None:
            while not is_over.is_set():
                fields = {"max_tokens": 48, "ignore_eos": True}
                assert server.complete("abcdefgh", headers=bearer(key), **fields).status == 200

        def served(key: str) -> int:
            metrics = server.serving.metrics
            assert isinstance(metrics, ServerMetrics)
            return metrics.prompt_tokens_by_key[key] + 2 * metrics.generated_tokens_by_key[key]

        with ThreadPoolExecutor(44) as pool:
            for key, count in ((GREEDY, 40), (POLITE, 4)):
                for _ in range(count):
                    pool.submit(ask, key)
            try:
                until(lambda: min(served("greedy"), served("polite")) > 1000, timeout_s=60)
                before = [served("greedy"), served("polite")]
                until(lambda: served("greedy") > before[0] + 4000, timeout_s=60)
                shares = [served(k) - b for k, b in zip(("greedy", "polite"), before, strict=True)]
            finally:
                is_over.set()
        assert jain_index(shares) >= 0.9, shares
        server.check_idle()


def test_one_key_alone_is_served_as_before(serve: Any) -> None:
    with serve(api_key=(POLITE,)) as server:
        assert server.complete(headers=bearer(POLITE), priority=-5).status == 200
        assert server.engine.scheduler.fair_share is None
        assert not any("chairlift:key_" in name for name in scrape(server, headers=bearer(POLITE)))


def test_new_engine_shares_as_the_old_one_did(serve: Any, key_file: str) -> None:
    options = {"check_interval_s": 0.02, "retry_wait_s": 0.02}
    with serve(api_key_file=key_file, key_weight=("polite=3",), supervisor_options=options) as it:
        gate = Gate(it.engine)
        gate.fault = MemoryError("for the test")
        gate.open()
        assert it.complete(headers=bearer(POLITE)).status == 503
        until(lambda: len(it.engines) == 2 and it.get("/health").status == 200)
        fair_share = it.engine.scheduler.fair_share
        assert fair_share is not None and fair_share.weight("polite") == 3
        assert it.complete(headers=bearer(POLITE)).status == 200


def test_nobody_gets_past_the_others_by_priority(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEYS}chief sk-chief priority=-1\n")
    with serve(api_key_file=str(path), engine={"scheduling_policy": "priority"}) as server:
        refused = server.complete(headers=bearer(GREEDY), priority=-1)
        assert refused.status == 400
        assert refused.error["code"] == "priority_not_allowed"
        assert refused.error["param"] == "priority"
        for key, priority in ((GREEDY, 0), (GREEDY, 9), ("sk-chief", -1)):
            assert server.complete(headers=bearer(key), priority=priority).status == 200


# -- the queue -----------------------------------------------------------------------------------
def test_full_key_is_told_and_the_other_comes_in(serve: Any, key_file: str) -> None:
    with serve(api_key_file=key_file, max_queued_requests=8, engine={"max_num_seqs": 1}) as server:
        gate = Gate(server.engine)
        with ThreadPoolExecutor(6) as pool:
            held = [pool.submit(server.complete, headers=bearer(GREEDY)) for _ in range(4)]
            until(lambda: server.serving.admission.num_waiting == 4)
            refused = server.complete(headers=bearer(GREEDY))
            assert refused.status == 429 and refused.error["code"] == "key_queue_full"
            assert "4 prompts of this API key" in refused.error["message"]
            assert int(refused.headers["retry-after"]) >= 1
            polite = pool.submit(server.complete, headers=bearer(POLITE))
            until(lambda: server.serving.admission.num_waiting == 5)
            gate.open()
            assert polite.result().status == 200
            assert {answer.result().status for answer in held} == {200}
        samples = scrape(server, headers=bearer(POLITE))
        assert samples["chairlift:key_rejections_total"] == {("greedy",): 1, ("polite",): 0}
        assert samples["chairlift:rejections_total"][("key_queue_full",)] == 1
        assert samples["chairlift:key_requests_total"] == {("greedy",): 4, ("polite",): 1}
        assert samples["chairlift:key_requests_waiting"] == {("greedy",): 0, ("polite",): 0}
        server.check_idle()


@pytest.fixture
def arrive(build_tiny: Any) -> Any:
    """arrive("greedy", 3, tokens=5) -> an arrival of three prompts."""
    engine, count = build_tiny(), [0]

    def make(key: str, num: int = 1, *, tokens: int = 1, deadline_s: float | None = None) -> Any:
        count[0] += 1
        requests = [
            engine.process_input(
                [5] * tokens, SamplingParams(max_tokens=10), request_id=f"{count[0]}-{index}"
            )
            for index in range(num)
        ]
        return Arrival(key_name=key, priority=0, requests=requests, deadline_s=deadline_s)

    return make


def fill(queue: BoundedQueue, arrive: Any, key: str, **options: Any) -> int:
    """Requests of a key until one is turned away; how many came in."""
    count = 0
    while True:
        try:
            queue.admit(arrive(key, **options))
        except ApiError as error:
            assert error.status == 429
            return count
        count += 1


WEIGHTS = {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("options", [{}, {"tokens": 10}], ids=["prompts", "tokens"])
def test_greedy_keys_leave_room(arrive: Any, options: dict[str, int]) -> None:
    queue = BoundedQueue(QueueLimits(max_requests=96, max_tokens=960), weights=WEIGHTS)
    assert fill(queue, arrive, "a", **options) == 48, "half for one"
    assert fill(queue, arrive, "b", **options) == 24, "half of the rest"
    assert fill(queue, arrive, "c", **options) == 12
    queue.admit(arrive("d", **options))


def test_request_larger_than_the_queue_keeps_nobody_else_out(arrive: Any) -> None:
    queue = BoundedQueue(QueueLimits(max_requests=8, max_tokens=10**6), weights=WEIGHTS)
    large = arrive("a", 50)
    queue.admit(large)
    with pytest.raises(ApiError, match="of this API key"):
        queue.admit(arrive("a"))
    assert fill(queue, arrive, "b") > 0
    queue.leave(large)
    queue.admit(arrive("a", 50))
    assert queue.num_waiting > 50 and queue.num_waiting_of("a") == 50


def test_bound_for_each_key_by_flag(arrive: Any) -> None:
    limits = QueueLimits(
        max_requests=96, max_tokens=960, max_requests_per_key=5, max_tokens_per_key=100
    )
    for weights in (WEIGHTS, {}):
        queue = BoundedQueue(limits, weights=weights)
        assert fill(queue, arrive, "a") == 5
        assert fill(queue, arrive, "b", tokens=40) == 2
        assert fill(queue, arrive, "c", tokens=40, num=3) == 1, "what is larger could never come"


def test_one_key_has_the_whole_queue(arrive: Any) -> None:
    queue = BoundedQueue(QueueLimits(max_requests=10, max_tokens=10**6), weights={"a": 1})
    assert fill(queue, arrive, "a") == 10


# -- numbers -------------------------------------------------------------------------------------
def test_series_of_keys_are_bounded_and_hold_no_secret(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"team{i} sk-secret-{i}\n" for i in range(MAX_KEYS + 20)))
    with serve(api_key_file=str(path)) as server:
        for index in (0, MAX_KEYS + 1, MAX_KEYS + 19):
            headers = bearer(f"sk-secret-{index}")
            assert server.complete(headers=headers, max_tokens=3, ignore_eos=True).status == 200
        text = server.get("/metrics", headers=bearer("sk-secret-0")).body.decode()
        assert "sk-secret" not in text
        samples = scrape(server, headers=bearer("sk-secret-0"))
    tokens = samples["chairlift:key_generation_tokens_total"]
    assert len(tokens) == MAX_KEYS + 1
    assert tokens[("team0",)] == 3 and tokens[("team1",)] == 0 and tokens[("other",)] == 6


def test_cache_of_one_key_is_closed_to_the_other(serve: Any, key_file: str) -> None:
    with serve(api_key_file=key_file) as server:
        cached = [cached_tokens(server, key) for key in (GREEDY, POLITE, GREEDY)]
    assert cached[:2] == [0, 0] and cached[2] > 0


def cached_tokens(server: RunningServer, key: str) -> int:
    usage = server.complete("x" * 60, headers=bearer(key)).json["usage"]
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0))
