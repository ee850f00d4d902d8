"""What dialects call fields, in errors and lists."""

from __future__ import annotations

import pytest

from chairlift.server.errors import ApiError
from chairlift.server.field_names import FieldNames

NAMES = {"stop": "stop_sequences", "messages": "input", "max_tokens": "most", "a": "x", "a.b": "y"}


def told(names: FieldNames, message: str, param: str | None) -> ApiError:
    with pytest.raises(ApiError) as caught, names.told():
        raise ApiError(400, message, param=param, code="c", headers=[(b"a", b"b")])
    assert (caught.value.code, caught.value.headers) == ("c", [(b"a", b"b")])
    return caught.value


def test_longest_name_that_ends_where_a_word_ends_counts() -> None:
    names = FieldNames(NAMES)
    for theirs, ours in {
        "stop[2]": "stop_sequences[2]",
        "stop_token_ids": "stop_token_ids",
        "a.b.c": "y.c",
        "a.bc": "x.bc",
        "messages[3].content": "input[3].content",
        "other": "other",
    }.items():
        assert names.own(theirs) == ours
    assert FieldNames(NAMES, whole={"messages"}).own("messages[3].content") == "input"


def test_message_says_the_field_where_nothing_else_does() -> None:
    names = FieldNames(NAMES)
    for message, param, said in (
        ("stop: is wrong", "stop", "stop_sequences: is wrong"),
        ("cannot be taken", "stop", "stop_sequences: cannot be taken"),
        ("odd stop_sequences", "stop", "odd stop_sequences"),
        ("max_tokens and stop", None, "max_tokens and stop"),
    ):
        error = told(names, message, param)
        assert (error.message, error.param) == (said, param and "stop_sequences")


def test_message_beside_a_param_is_left_but_for_names() -> None:
    names = FieldNames(NAMES, in_text=["max_tokens"], has_param=True)
    for message, param, said in (
        ("cannot be taken", "stop", "cannot be taken"),
        ("no stop and no max_tokens", "stop", "no stop_sequences and no most"),
        ("no stop and no max_tokens_2", None, "no stop and no max_tokens_2"),
    ):
        assert told(names, message, param).message == said
