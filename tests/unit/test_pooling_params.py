from __future__ import annotations

import copy
import pickle

import pytest

from chairlift.errors import RequestError
from chairlift.pooling_params import PoolingParams


def test_defaults_leave_the_kind_to_the_model() -> None:
    params = PoolingParams()
    assert params.pooling_type is None and params.normalize
    assert pickle.loads(pickle.dumps(params)) == copy.copy(params) == params


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pooling_type", "cls"),
        ("pooling_type", "MEAN"),
        ("pooling_type", 1),
        ("pooling_type", ["mean"]),
        ("normalize", 1),
        ("normalize", None),
    ],
)
def test_a_bad_value_is_named(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        PoolingParams(**{field: value})
    assert caught.value.field == field
