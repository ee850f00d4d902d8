"""Order by rank, and removal from the middle."""

from __future__ import annotations

from chairlift.core.request import Request
from chairlift.core.request_queue import RankQueue
from fake_executor import make_request


def ranked(name: str, *rank: int) -> Request:
    request = make_request(name, 1)
    request.rank = (rank[0], rank[1])
    return request


def test_first_in_rank_stands_first() -> None:
    queue = RankQueue()
    for request in (ranked("b", 0, 2), ranked("c", 1, 0), ranked("a", 0, 1)):
        queue.add(request)
    order = []
    while (first := queue.peek()) is not None:
        order.append(first.request_id)
        queue.remove(first.request_id)
    assert order == ["a", "b", "c"] and len(queue) == 0


def test_removal_from_the_middle_and_return() -> None:
    queue = RankQueue()
    requests = [ranked(name, 0, index) for index, name in enumerate("abc")]
    for request in requests:
        queue.add(request)
    queue.remove("a")
    assert queue.peek() is requests[1] and "a" not in queue
    queue.add(requests[0])
    assert queue.peek() is requests[0] and len(queue) == 3


def test_id_that_comes_again_with_another_rank_stands_at_its_new_place() -> None:
    queue = RankQueue()
    queue.add(ranked("a", 0, 0))
    queue.add(ranked("b", 0, 1))
    queue.remove("a")
    queue.add(ranked("a", 0, 2))
    first = queue.peek()
    assert first is not None and first.request_id == "b"


def test_removed_entries_do_not_pile_up_behind_a_head_that_stays() -> None:
    queue = RankQueue()
    queue.add(ranked("head", 0, 0))
    for index in range(10_000):
        queue.add(ranked("guest", 0, index + 1))
        queue.remove("guest")
    assert len(queue._heap) < 200
    assert queue.peek() is not None and len(queue) == 1
