"""The base of all request models: no coercion, nothing infinite, null means absent.

Fields that a model does not know are kept apart, so that the server can name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from chairlift.server.errors import ApiError, bad_request

_MAX_SHOWN = 200


class StrictModel(BaseModel):
    """Values have exactly the types that are written down."""

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        """An explicit null is the same as absence."""
        if isinstance(values, dict) and None in values.values():
            return {name: value for name, value in values.items() if value is not None}
        return values

    def unknown_fields(self) -> Iterator[str]:
        """Names of the fields that this model does not know."""
        yield from self.model_extra or ()


Model = TypeVar("Model", bound=StrictModel)


def parse(kind: type[Model], values: Mapping[str, Any], *, place: str = "") -> Model:
    """Raises `ApiError` that names the first field at fault; `place` is where `values` stand."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _api_error(error, place) from None


def _api_error(error: ValidationError, place: str) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=True)[0]
    param = _param((place, *first["loc"]) if place else first["loc"])
    kind = first["type"]
    message = first["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return bad_request(f"{param} is required", param=param, code="missing_required_parameter")
    is_above = kind in ("less_than_equal", "less_than") and isinstance(
        first.get("ctx", {}).get("le", first.get("ctx", {}).get("lt")), int
    )
    code = "integer_above_max_value" if is_above else None
    return bad_request(f"{param}: {message}"[:1000] if param else message, param=param, code=code)


def _param(location: tuple[int | str, ...]) -> str | None:
    """("messages", 0, "role") becomes messages[0].role."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:_MAX_SHOWN] or None
