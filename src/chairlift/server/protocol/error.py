"""The shape of every answer that is not a success."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong: all four keys are always there."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Body of every 4xx and 5xx."""

    error: ErrorDetail
