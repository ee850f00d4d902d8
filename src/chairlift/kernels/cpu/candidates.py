"""A `CandidateQuery` as the native library takes it: shapes and pointers, nothing computed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from chairlift.kernels.candidates import ROW_QUERY, CandidateQuery, Candidates, empty_candidates
from chairlift.kernels.cpu.array_checks import check_array
from chairlift.kernels.cpu.library import SIZE, NativeLibrary

POINTER = ctypes.c_void_p


class CandidatesTask(ctypes.Structure):
    """`chairlift_candidates` of the C header, field by field."""

    _fields_ = (
        ("struct_size", SIZE),
        ("queries", POINTER),
        ("edit_ids", POINTER),
        ("edit_values", POINTER),
        ("num_edits", SIZE),
        ("max_listed", SIZE),
        ("found", POINTER),
        ("listed_ids", POINTER),
        ("listed_logits", POINTER),
    )


def call_with_query(
    library: NativeLibrary, query: CandidateQuery, call: Callable[[Any], int]
) -> Candidates:
    """The candidates that `call` finds, a C function given everything but its last argument.

    Raises:
        ValueError: arrays do not fit each other, or the library refuses them.
        MemoryError: the library has no memory for its work.
    """
    check_array("rows of the query", query.rows, ROW_QUERY, (None,))
    check_array("edit_ids", query.edit_ids, np.int32, (None,))
    check_array("edit_values", query.edit_values, np.float32, query.edit_ids.shape)
    max_listed = query.max_listed
    found = empty_candidates(len(query), max_listed)
    task = CandidatesTask(
        ctypes.sizeof(CandidatesTask),
        query.rows.ctypes.data,
        query.edit_ids.ctypes.data,
        query.edit_values.ctypes.data,
        len(query.edit_ids),
        max_listed,
        found.rows.ctypes.data,
        found.listed_ids.ctypes.data,
        found.listed_logits.ctypes.data,
    )
    library.check(call(ctypes.byref(task)))
    return found
