"""Where measuring attaches: what the server tells of requests and of the engine's steps.

The default does nothing.  Calls come from the event loop, but for `step_done`, which comes from
the engine's thread, and `text`, which comes from any; all but `text` must be quick.
"""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.engine.input_processor import ProcessedInput
from chairlift.events import StepRecord
from chairlift.server.exchange import Exchange


class MetricsHooks:
    """Override what is of interest."""

    def request_received(self, exchange: Exchange) -> None:
        """A request for tokens has been read and understood."""

    def request_rejected(self, exchange: Exchange, cause: str) -> None:
        """It gets an error instead of an answer; the cause is its code, or status_400 and so on."""

    def request_admitted(self, requests: Sequence[ProcessedInput]) -> None:
        """Its prompts go to the engine now."""

    def request_left(self, exchange: Exchange, requests: Sequence[ProcessedInput]) -> None:
        """An admitted request is over for the engine, however it ended."""

    def request_finished(self, exchange: Exchange) -> None:
        """Any request has been answered, or its client has gone: status, code, outputs are set."""

    def fields_ignored(self, names: Sequence[str]) -> None:
        """Fields of a request that changed nothing.  Their names come from clients."""

    def step_done(self, record: StepRecord) -> None:
        """The engine has made a step."""

    def engine_rebuilt(self) -> None:
        """The engine had to be built anew."""

    async def run(self) -> None:
        """Runs beside the server until it is cancelled."""

    def text(self, accept: str) -> tuple[bytes, str]:
        """What /metrics answers, and its content type, for a client that accepts `accept`."""
        return b"", "text/plain; charset=utf-8"
