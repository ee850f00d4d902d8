from __future__ import annotations

from chairlift.tokenizer.end_tokens import find_end_tokens


def test_several_end_tokens_are_found_together() -> None:
    added = {"<|im_start|>": 1, "<|im_end|>": 2, "<|endoftext|>": 0, "<end_of_turn>": 9}
    assert find_end_tokens(added) == {0, 2, 9}


def test_message_end_is_no_turn_end_where_turns_hold_several_messages() -> None:
    assert find_end_tokens({"<|end|>": 7}) == {7}
    assert find_end_tokens({"<|end|>": 7, "<|return|>": 8, "<|call|>": 9}) == {8, 9}
