"""Every error that Chairlift raises for a user's mistake.

All of them are `ValueError`, so that library users can catch one class; the CLI prints the message
as one line and exits with code 2.  An `AssertionError` elsewhere is a mistake of ours.
"""

from __future__ import annotations


class ChairliftError(ValueError):
    """A mistake that the user can correct.  The message is one line and says how."""


class ModelFileError(ChairliftError):
    """A model file or folder is missing, cut, inconsistent, or of a kind we cannot run."""


class ModelSourceError(ChairliftError):
    """A model could not be found or downloaded."""


class ConfigError(ChairliftError):
    """An engine option is out of range or does not fit the machine.  `field` names it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class RequestError(ChairliftError):
    """A request cannot be served.  `field` names the offending input."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextLengthError(RequestError):
    """A request is longer than the model's context or the KV cache allows."""


class EngineDeadError(RuntimeError):
    """The engine has stopped and can take no more requests."""
