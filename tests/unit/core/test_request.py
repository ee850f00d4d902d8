"""The arithmetic of one stream."""

from __future__ import annotations

from chairlift.core.request import FINISH_REASONS, RequestStatus
from fake_executor import make_request


def test_counts_follow_a_request_through_its_life() -> None:
    request = make_request("a", 6, 3)
    assert (request.num_remaining_tokens, request.is_prefilling) == (6, True)
    request.num_computed_tokens = 5
    assert (request.num_remaining_tokens, request.is_prefilling) == (1, True)
    request.num_computed_tokens = 6
    request.num_pending_tokens = 1
    assert (request.num_remaining_tokens, request.is_prefilling) == (1, False)
    request.token_ids.append(7)
    request.num_pending_tokens = 0
    assert request.output_token_ids == [7] and request.num_output_tokens == 1
    assert not request.is_all_sampled
    request.num_pending_tokens = 2
    assert request.is_all_sampled


def test_last_token_needs_no_place_in_memory() -> None:
    assert make_request("a", 6, 3).num_max_tokens == 8


def test_finished_states_come_last_and_have_reasons() -> None:
    finished = [status for status in RequestStatus if status >= RequestStatus.FINISHED_STOPPED]
    assert set(finished) == set(FINISH_REASONS)
    request = make_request("a", 6)
    assert request.finish_reason is None and not request.is_finished
    request.status = RequestStatus.FINISHED_LENGTH
    assert request.finish_reason == "length" and request.is_finished
