"""Text to token ids and back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from chairlift.server.long_lists import are_within, kinds_of
from chairlift.server.protocol.chat import MAX_MESSAGES, ChatMessage
from chairlift.server.protocol.sampling_fields import INT32_MAX
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.server.protocol.tools import Tools


class TokenizeRequest(StrictModel):
    """Body of POST /tokenize: a prompt, or messages."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = (
        None
    )
    tools: Tools | None = None
    """Of which the messages' model is told."""
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class TokenizeAnswer(BaseModel):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or kinds_of(value) - {int}:
        raise ValueError("must be a list of integers")
    if not are_within(value, 0, INT32_MAX):
        raise ValueError("holds a token id that is out of vocabulary")
    return value


class DetokenizeRequest(StrictModel):
    """Body of POST /detokenize."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    tokens: Annotated[
        Any,
        BeforeValidator(_token_ids),
        WithJsonSchema(
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX}}
        ),
    ]


class DetokenizeAnswer(BaseModel):
    """Answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(BaseModel):
    """Answer of GET /tokenizer_info."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    eos_token_ids: list[int]
    chat_template: str | None
