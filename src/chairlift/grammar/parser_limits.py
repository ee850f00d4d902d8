"""How far llguidance may go, and the check that a grammar stays within it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


NO_TEXT: Final = "no text matches it"


class GrammarError(ValueError):
    """A grammar is wrong, or can go no further; the message is one line."""


def parser_limits() -> LLParserLimits:
    """For compiling and for each token; what they leave unbounded, a process of its own bounds."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=400_000,
        step_lexer_fuel=200_000,
        step_max_items=200_000,
        max_lexer_states=100_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def check_grammar(text: str, trie: LLTokenizer) -> LLMatcher:
    """At the beginning of a text, whose first mask has been computed.  Raises `GrammarError`."""
    from llguidance import LLMatcher

    matcher = LLMatcher(trie, text, log_level=0, limits=parser_limits())
    raise_error(matcher)
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(_why_nothing_begins(first_line(matcher.get_error())))
    if not any(mask):
        raise GrammarError(NO_TEXT)
    return matcher


def _why_nothing_begins(reason: str) -> str:
    return NO_TEXT if reason.startswith("NoExtension") else reason


def raise_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(first_line(matcher.get_error()))


def first_line(message: str) -> str:
    """What llguidance says, without the state of its parser."""
    return message.strip().partition("\n")[0].strip()[:300] or "unknown error"
