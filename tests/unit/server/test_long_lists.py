"""Long lists looked through in parts say what they would say in one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.server import long_lists
from chairlift.server.long_lists import are_within, kinds_of

VALUES = st.lists(st.integers(-5, 5) | st.booleans() | st.text(max_size=1) | st.none())


@settings(deadline=None)
@given(VALUES, st.integers(1, 4))
def test_kinds_of_all_values(values: list[Any], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_lists, "_PART", size)
        assert kinds_of(values) == set(map(type, values))
        assert kinds_of(iter(values)) == set(map(type, values))


@settings(deadline=None)
@given(st.lists(st.integers(-5, 5)), st.integers(-5, 5), st.integers(-5, 5), st.integers(1, 4))
def test_all_values_are_within(values: list[int], low: int, high: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_lists, "_PART", size)
        assert are_within(values, low, high) == all(low <= value <= high for value in values)
