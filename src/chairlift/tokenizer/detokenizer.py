"""IncrementalDetokenizer: the text of a growing list of tokens, piece by piece.

Works on bytes with an incremental UTF-8 decoder: each token is looked at once, whatever the length
of the text, and a character is given out when its last byte has come, never before.  Streamed and
whole answers both go through this class, so that they cannot differ.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol


class TokenSource(Protocol):
    """The part of a tokenizer that decoding needs."""

    @property
    def strips_leading_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class IncrementalDetokenizer:
    """Turns the tokens of one completion into text as they come.

    All results joined, `flush` included, are the same for every way to cut the ids into pushes.
    Without a prompt they equal `tokenizer.decode(ids)`.

    SentencePiece vocabularies spell the first word of a text with a space in front that was never
    in the text.  It is taken off only where a text begins: after a prompt with visible text the
    completion goes on in mid-text and its first space is real.  So prompt text + completion text
    is the text of the whole.  The prompt's bytes are never part of the result: a completion that
    begins inside a character begins with U+FFFD.
    """

    __slots__ = ("_decoder", "_kept", "_skip_special_tokens", "_strip_space", "_tokenizer")

    def __init__(
        self,
        tokenizer: TokenSource,
        *,
        skip_special_tokens: bool = True,
        kept_special_token_ids: Collection[int] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """`kept_special_token_ids` are text all the same, though others are skipped.

        `prompt_token_ids`: the tokens before the completion; they give no text themselves.
        """
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._kept = frozenset(kept_special_token_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = tokenizer.strips_leading_space and not any(
            map(self._visible_bytes, prompt_token_ids)
        )

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that `token_ids` complete; may be empty."""
        new_bytes = b"".join(map(self._visible_bytes, token_ids))
        if self._strip_space and new_bytes:
            self._strip_space = False
            new_bytes = new_bytes.removeprefix(b" ")
        return self._decoder.decode(new_bytes)

    def flush(self) -> str:
        """What is still held back at the end: U+FFFD for a character that never came whole."""
        return self._decoder.decode(b"", final=True)

    def _visible_bytes(self, token_id: int) -> bytes:
        is_skipped = self._skip_special_tokens and self._tokenizer.is_special(token_id)
        if is_skipped and token_id not in self._kept:
            return b""
        return self._tokenizer.token_bytes(token_id)
