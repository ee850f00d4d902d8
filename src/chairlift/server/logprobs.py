"""Log probabilities in the two shapes of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chairlift.outputs import Logprob
from chairlift.server.protocol.chat import ChoiceLogprobs, TokenLogprobs, TopLogprob
from chairlift.server.protocol.completion import TextLogprobs
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from chairlift.tokenizer.tokenizer import Tokenizer

FLOOR = -9999.0
"""Stands for minus infinity, which JSON does not have."""

Position = Mapping[int, Logprob]
"""The chosen token first, then the best ones."""


def chat_logprobs(
    tokenizer: Tokenizer, positions: Sequence[Position], num_top: int
) -> ChoiceLogprobs:
    return ChoiceLogprobs(content=[_chat_token(tokenizer, p, num_top) for p in positions])


def _chat_token(tokenizer: Tokenizer, position: Position, num_top: int) -> TokenLogprobs:
    best = [item for item in position.items() if (item[1].rank or 0) <= num_top]
    best.sort(key=lambda item: -item[1].logprob)
    token_id, chosen = next(iter(position.items()))
    return TokenLogprobs(
        token=tokenizer.token_text(token_id),
        logprob=max(chosen.logprob, FLOOR),
        bytes=list(tokenizer.token_bytes(token_id)),
        top_logprobs=[
            TopLogprob(
                token=tokenizer.token_text(token_id),
                logprob=max(logprob.logprob, FLOOR),
                bytes=list(tokenizer.token_bytes(token_id)),
            )
            for token_id, logprob in best[:num_top]
        ],
    )


class TextLogprobWriter:
    """Writes the tokens of one text in order, however they come in pieces."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        offset: int = 0,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """`offset`: characters of the whole text before these tokens."""
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, prompt_token_ids=prompt_token_ids
        )
        self._offset = offset

    def write(self, token_ids: Sequence[int], positions: Sequence[Position | None]) -> TextLogprobs:
        """One entry per token; None where nothing precedes a token."""
        lists = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, position in zip(token_ids, positions, strict=True):
            name = token_name(self._tokenizer, token_id)
            lists.tokens.append(name)
            lists.text_offset.append(self._offset)
            self._offset += len(self._detokenizer.push([token_id]))
            if position is None:
                lists.token_logprobs.append(None)
                lists.top_logprobs.append(None)
                continue
            chosen = max(position[token_id].logprob, FLOOR)
            top = {
                token_name(self._tokenizer, other): max(logprob.logprob, FLOOR)
                for other, logprob in position.items()
            }
            # Should another token have the same name, the chosen one keeps its own figure.
            lists.token_logprobs.append(chosen)
            lists.top_logprobs.append({**top, name: chosen})
        return lists


def joined(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    """Several pieces of one text as one."""
    whole = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for part in parts:
        whole.tokens += part.tokens
        whole.token_logprobs += part.token_logprobs
        whole.top_logprobs += part.top_logprobs
        whole.text_offset += part.text_offset
    return whole


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; for one that is no whole character, its bytes spelled out."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
