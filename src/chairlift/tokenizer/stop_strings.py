"""StopStringMatcher: cuts a stream of text at the first stop string, without leaks.

Text that may be the beginning of a stop string is held back until it is decided.  Each character
is looked at once per stop string (Knuth-Morris-Pratt), so the result cannot depend on how the text
was cut into deltas.  Does not know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.errors import RequestError


class StopStringMatcher:
    """Finds the first of several stop strings in text that comes in pieces.

    The first match is the one that is complete first; of those complete at the same character, the
    one that began first, that is the longest.  `stopped` is that stop string, None before.
    """

    __slots__ = ("_held", "_include_in_output", "_matchers", "stopped")

    def __init__(self, stop: Sequence[str], *, include_in_output: bool = False) -> None:
        """`include_in_output`: the text ends with the stop string instead of before it.

        Raises RequestError for an empty stop string.
        """
        if not all(stop):
            raise RequestError("stop must not hold an empty string; leave it out", field="stop")
        self._matchers = [_Matcher(text) for text in dict.fromkeys(stop)]
        self._include_in_output = include_in_output
        self._held = ""
        self.stopped: str | None = None

    def push(self, delta: str, *, may_stop: bool = True) -> str:
        """Text that is safe to give out now; empty once `stopped` is set.

        `may_stop=False`, for tokens before `min_tokens`: a stop string that ends in this text does
        not stop.  One that begins in it and ends in later text does.
        """
        if self.stopped is not None:
            return ""
        if not self._matchers:
            return delta
        text = self._held + delta
        for end, character in enumerate(delta, start=len(self._held) + 1):
            complete = [m.text for m in self._matchers if m.advance(character)]
            if complete and may_stop:
                return self._cut(text, end, max(complete, key=len))
        if self._include_in_output:
            return delta
        safe = len(text) - max(matcher.num_matched for matcher in self._matchers)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """What is still held back when the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str, end: int, stop: str) -> str:
        self.stopped = stop
        self._held = ""
        return text[: end if self._include_in_output else end - len(stop)]


class _Matcher:
    """How much of one stop string the text seen so far ends with."""

    __slots__ = ("_borders", "num_matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = _borders(text)
        self.num_matched = 0

    def advance(self, character: str) -> bool:
        """Takes the next character; whether the stop string is complete with it."""
        matched = self.num_matched
        while matched and self.text[matched] != character:
            matched = self._borders[matched - 1]
        if self.text[matched] == character:
            matched += 1
        complete = matched == len(self.text)
        # A whole match can only be the start of the next one by its longest border.
        self.num_matched = self._borders[-1] if complete else matched
        return complete


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(text)
    matched = 0
    for index in range(1, len(text)):
        while matched and text[matched] != text[index]:
            matched = borders[matched - 1]
        if text[matched] == text[index]:
            matched += 1
        borders[index] = matched
    return borders
