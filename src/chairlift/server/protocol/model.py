"""The list of models."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Model(BaseModel):
    """A name under which the model is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "chairlift"
    root: str
    """The model as it was asked for."""
    parent: str | None = None
    max_model_len: int


class ModelList(BaseModel):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]
