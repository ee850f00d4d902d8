"""Order, removal from the middle, and the two lanes."""

from __future__ import annotations

from chairlift.core.request import Request
from chairlift.core.request_queue import RequestQueue, WaitingQueue
from fake_executor import make_request


def ranked(name: str, *rank: int, prompt: int = 1) -> Request:
    request = make_request(name, prompt)
    request.rank = (rank[0], rank[1])
    return request


def test_first_in_rank_stands_first() -> None:
    queue = RequestQueue()
    for request in (ranked("b", 0, 2), ranked("c", 1, 0), ranked("a", 0, 1)):
        queue.add(request)
    order = []
    while (first := queue.peek()) is not None:
        order.append(first.request_id)
        queue.remove(first.request_id)
    assert order == ["a", "b", "c"] and len(queue) == 0


def test_removal_from_the_middle_and_return() -> None:
    queue = RequestQueue()
    requests = [ranked(name, 0, index) for index, name in enumerate("abc")]
    for request in requests:
        queue.add(request)
    queue.remove("a")
    assert queue.peek() is requests[1] and "a" not in queue
    queue.add(requests[0])
    assert queue.peek() is requests[0] and len(queue) == 3


def test_id_that_comes_again_with_another_rank_stands_at_its_new_place() -> None:
    queue = RequestQueue()
    queue.add(ranked("a", 0, 0))
    queue.add(ranked("b", 0, 1))
    queue.remove("a")
    queue.add(ranked("a", 0, 2))
    first = queue.peek()
    assert first is not None and first.request_id == "b"


def test_removed_entries_do_not_pile_up_behind_a_head_that_stays() -> None:
    queue = RequestQueue()
    queue.add(ranked("head", 0, 0))
    for index in range(10_000):
        queue.add(ranked("guest", 0, index + 1))
        queue.remove("guest")
    assert len(queue._heap) < 200
    assert queue.peek() is not None and len(queue) == 1


def test_lanes_part_long_prompts_from_short_ones() -> None:
    waiting = WaitingQueue(long_prompt_tokens=8)
    waiting.add(ranked("long", 0, 0, prompt=9))
    waiting.add(ranked("short", 0, 1, prompt=8))
    first, first_short = waiting.peek(), waiting.short.peek()
    assert first is not None and first.request_id == "long"
    assert first_short is not None and first_short.request_id == "short"
    assert waiting.remove("long") and not waiting.remove("long")
    assert [request.request_id for request in waiting] == ["short"]
