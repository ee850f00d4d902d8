"""Which tokens end a turn, judged by their text.

Many model files name one end token and use another one in their chat template; a model whose real
end of turn is missed talks to itself until the token limit.
"""

from __future__ import annotations

from collections.abc import Mapping

_END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|end_of_turn|>",
        "<|endofturn|>",
        "[|endofturn|]",
        "<end_of_turn>",
        "<turn|>",
        "<end_of_utterance>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<EOT>",
        "[EOT]",
    }
)


def find_end_tokens(added_tokens: Mapping[str, int]) -> frozenset[int]:
    """Ids of the well-known end-of-turn tokens among `added_tokens` (text to id).

    Ordinary pieces must not be among `added_tokens`: a model may write "<|end|>" letter by letter.
    """
    ends = _END_TEXTS & added_tokens.keys()
    if {"<|return|>", "<|call|>"} <= ends:
        # In this format one answer is several messages, and <|end|> only closes a message.
        ends -= {"<|end|>"}
    return frozenset(added_tokens[text] for text in ends)
