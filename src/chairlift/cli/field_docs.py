"""Help texts from where the options are defined: the docstring under each dataclass field."""

from __future__ import annotations

import ast
import inspect
from functools import cache

_UNSAID = {
    "include_stop_str_in_output": "Keep the stop string in the text.",
    "skip_special_tokens": "Leave control tokens out of the text.",
}


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Field name to help text, on one line.  Empty where the source is not there to be read."""
    try:
        body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0]
    except (OSError, SyntaxError):
        return dict(_UNSAID)
    assert isinstance(body, ast.ClassDef)
    docs = dict(_UNSAID)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            docs[field.target.id] = " ".join(text.value.value.split())
    return docs
