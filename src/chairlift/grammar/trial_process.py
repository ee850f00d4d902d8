"""The process that compiles a grammar first: if that never ends, it is the process that ends.

Reads frames from standard input and answers each grammar with a frame on standard output: empty if
it compiles, otherwise why not.  The first two frames are the vocabulary and its special tokens.
A grammar may take so much processor time and memory; more kills the process, which is the answer.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final

from chairlift.grammar.parser_limits import check_grammar, first_line

if TYPE_CHECKING:
    from llguidance import LLTokenizer

HEADER: Final = struct.Struct("<Q")
CPU_SECONDS: Final = 1.0
"""For one grammar; a large schema takes a tenth of it."""
MEMORY_BYTES: Final = 512 * 1024 * 1024
"""For all grammars, above what the vocabulary takes."""


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None at the end."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    data = stream.read(size)
    return data if len(data) == size else None


def packed_tokens(tokens: Sequence[bytes]) -> bytes:
    """Lengths, then the tokens one after the other."""
    lengths = struct.pack(f"<{len(tokens)}I", *map(len, tokens))
    return HEADER.pack(len(tokens)) + lengths + b"".join(tokens)


def unpacked_tokens(data: bytes) -> list[bytes]:
    (count,) = HEADER.unpack_from(data)
    lengths = struct.unpack_from(f"<{count}I", data, HEADER.size)
    position, tokens = HEADER.size + 4 * count, []
    for length in lengths:
        tokens.append(data[position : position + length])
        position += length
    return tokens


class _Vocabulary:
    """As `LLTokenizer` wants it.  How exactly a text is cut is of no matter here."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    trie: LLTokenizer | None = None

    def __init__(self, tokens: list[bytes], special_ids: list[int], end_ids: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = end_ids[0]

    def __call__(self, text: str | bytes) -> list[int]:
        assert self.trie is not None
        return self.trie.greedy_tokenize(text if isinstance(text, str) else text.decode("utf-8"))


def _limit_memory() -> None:
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # where there is no such limit, there is that of time
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _arm(seconds: float) -> None:
    """The signal's default action ends the process, wherever it is.  0: no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    from llguidance import LLTokenizer

    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    packed, described = read_frame(stdin), read_frame(stdin)
    if packed is None or described is None:
        return
    special_ids, end_ids = json.loads(described)
    tokens = unpacked_tokens(packed)
    vocabulary = _Vocabulary(tokens, special_ids, end_ids)
    trie = LLTokenizer(vocabulary, n_vocab=len(tokens), eos_token=end_ids)  # type: ignore[arg-type]
    vocabulary.trie = trie
    _limit_memory()
    write_frame(stdout, b"")
    while (grammar := read_frame(stdin)) is not None:
        _arm(CPU_SECONDS)
        try:
            check_grammar(grammar.decode("utf-8"), trie)
            answer = ""
        except ValueError as error:
            answer = first_line(str(error)) or "unknown error"
        _arm(0.0)
        write_frame(stdout, answer.encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
