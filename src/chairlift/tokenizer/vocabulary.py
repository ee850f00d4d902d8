"""The pieces of a vocabulary and the exact bytes that each one stands for.

Owns both ways in which vocabularies spell bytes as text: the byte-level alphabet, in which every
byte has a printable stand-in, and SentencePiece, with U+2581 for a space and `<0x0A>` pieces for
single bytes.  Does not know how text is cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import cache

SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ByteScheme(Enum):
    """How a piece spells its bytes."""

    BYTE_LEVEL = auto()
    SENTENCEPIECE = auto()


@cache
def byte_alphabet() -> dict[str, int]:
    """The 256 stand-in characters of byte-level BPE and the byte that each one means.

    Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class Vocabulary:
    """Pieces by id.  Safe to use from several threads.

    An id beyond the last piece stands for nothing: embeddings are often padded with rows that
    have no piece, and a sampler may pick one.
    """

    __slots__ = ("_bytes", "_scheme", "_texts", "added_ids", "special_ids", "strip_leading_space")

    def __init__(
        self,
        texts: Sequence[str],
        *,
        scheme: ByteScheme,
        added_ids: frozenset[int],
        special_ids: frozenset[int],
        strip_leading_space: bool,
    ) -> None:
        """`added_ids` are matched in the text as they stand, `special_ids` of them are control.

        `strip_leading_space`: encoding puts a space in front of a text, so decoding takes it off.
        """
        self._texts = texts
        self._scheme = scheme
        self._bytes: list[bytes | None] = [None] * len(texts)
        self.added_ids = added_ids
        self.special_ids = special_ids
        self.strip_leading_space = strip_leading_space

    def __len__(self) -> int:
        return len(self._texts)

    def piece(self, token_id: int) -> str:
        """The piece as the vocabulary spells it; empty for an id beyond the last one."""
        return self._texts[token_id] if 0 <= token_id < len(self._texts) else ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; empty for an id beyond the last piece."""
        if not 0 <= token_id < len(self._bytes):
            return b""
        found = self._bytes[token_id]
        if found is None:
            # Two threads may both come here; they store the same value.
            found = self._bytes[token_id] = self._spell(token_id)
        return found

    def _spell(self, token_id: int) -> bytes:
        text = self._texts[token_id]
        if token_id in self.special_ids:
            return text.encode("utf-8", "replace")
        if self._scheme is ByteScheme.SENTENCEPIECE:
            byte = _BYTE_PIECE.fullmatch(text)
            if byte:
                return bytes((int(byte[1], 16),))
            return text.replace(SPACE_MARK, " ").encode("utf-8", "replace")
        alphabet = byte_alphabet()
        if token_id in self.added_ids or not alphabet.keys() >= set(text):
            return text.encode("utf-8", "replace")
        return bytes([alphabet[character] for character in text])
