from __future__ import annotations

from typing import Any

import pytest

from chairlift.engine.pooling_choice import choose_pooling


def gguf(number: int | None) -> dict[str, Any]:
    told = {} if number is None else {"qwen3.pooling_type": number}
    return {"general.architecture": "qwen3", **told}


@pytest.mark.parametrize(
    ("kind", "metadata", "pooling_type", "words"),
    [
        ("gguf", gguf(None), "last", "default of decoders"),
        ("gguf", gguf(0), "last", "default of decoders"),
        ("gguf", gguf(1), "mean", "the model's own"),
        ("gguf", gguf(3), "last", "the model's own"),
        ("gguf", gguf(2), "last", "number 2, is not supported"),
        ("gguf", {"general.architecture": "llama", "qwen3.pooling_type": 1}, "last", "default"),
        ("huggingface", {"config": {}}, "last", "default of decoders"),
        ("huggingface", {"pooling": {}}, "last", "default of decoders"),
        ("huggingface", {"pooling": {"pooling_mode_mean_tokens": True}}, "mean", "own"),
        ("huggingface", {"pooling": {"pooling_mode_lasttoken": True}}, "last", "own"),
        ("huggingface", {"pooling": {"pooling_mode": "mean"}}, "mean", "own"),
        ("huggingface", {"pooling": {"pooling_mode": "lasttoken"}}, "last", "own"),
        ("huggingface", {"pooling": {"pooling_mode": "cls"}}, "last", "cls, is not supported"),
        (
            "huggingface",
            {
                "pooling": {
                    "word_embedding_dimension": 64,
                    "pooling_mode_cls_token": False,
                    "pooling_mode_mean_tokens": True,
                    "include_prompt": True,
                }
            },
            "mean",
            "own",
        ),
        (
            "huggingface",
            {"pooling": {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}},
            "last",
            "is not supported",
        ),
    ],
)
def test_the_model_decides(
    kind: str, metadata: dict[str, Any], pooling_type: str, words: str
) -> None:
    choice = choose_pooling(None, kind, metadata)
    assert choice.pooling_type == pooling_type
    assert words in choice.reason and pooling_type in choice.reason


@pytest.mark.parametrize("asked", ["last", "mean"])
def test_the_user_decides_first(asked: Any) -> None:
    choice = choose_pooling(asked, "gguf", gguf(1))
    assert choice == (asked, f"embeddings by {asked} pooling (pooling_type)")
