"""Compiles grammars in a process that can be ended, before they are compiled in this one.

llguidance bounds most of what a grammar can make it do, but not all: intersections of patterns and
remainders of large numbers keep it busy for minutes, and a thread in native code cannot be ended.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref
from typing import IO, Final

from chairlift.grammar.parser_limits import GrammarError
from chairlift.grammar.trial_process import packed_tokens, read_frame, write_frame
from chairlift.tokenizer.tokenizer import Tokenizer

MAX_WAIT_S: Final = 5.0
"""Where a process cannot end itself after a second of its own time (Windows)."""
TOO_MUCH: Final = "it takes too much time or memory to compile: make it simpler"


class CompileTrial:
    """One process, started for the first grammar and again after a bad one.  Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., CompileTrial] | None = None

    def check(self, text: str) -> None:
        """Raises `GrammarError` if the grammar does not compile, or takes too much."""
        with self._lock:
            if self._process is None:
                self._start()
            answer = self._ask(text.encode("utf-8"))
            if answer is None:
                self.close()
                raise GrammarError(TOO_MUCH)
        if answer:
            raise GrammarError(answer.decode("utf-8"))

    def close(self) -> None:
        """End the process, if it runs."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "chairlift.grammar.trial_process"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._process, self._end = process, weakref.finalize(self, _end, process)
        tokenizer = self._tokenizer
        tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        ends = [i for i in sorted(tokenizer.eos_ids) if i < len(tokens)]
        described = json.dumps([sorted(tokenizer.special_ids), ends]).encode("utf-8")
        if self._exchange(packed_tokens(tokens), described) is None:
            self.close()
            raise GrammarError("the process that tries grammars did not start")

    def _ask(self, text: bytes) -> bytes | None:
        assert self._process is not None
        if hasattr(signal, "setitimer"):
            return self._exchange(text)
        timer = threading.Timer(MAX_WAIT_S, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            return self._exchange(text)
        finally:
            timer.cancel()

    def _exchange(self, *frames: bytes) -> bytes | None:
        """The answer to frames; None if the process ended."""
        assert self._process is not None
        try:
            for frame in frames:
                write_frame(_present(self._process.stdin), frame)
            return read_frame(_present(self._process.stdout))
        except OSError:
            return None


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
