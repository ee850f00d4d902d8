"""`chairlift chat`: a conversation in the terminal, or one message per line from a pipe."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig
from chairlift.sampling_params import SamplingParams

if TYPE_CHECKING:
    from chairlift.engine.llm import LLM

MAX_TOKENS = 512
HELP_LINE = "/reset starts over, /exit ends, Ctrl-C stops an answer."


@with_options(
    SamplingParams,
    EngineConfig,
    without=(
        "n",
        "detokenize",
        "kept_special_token_ids",
        "logprobs",
        "prompt_logprobs",
        "structured_outputs",
        "pooling_type",
    ),
    defaults={"max_tokens": MAX_TOKENS},
)
def chat(
    system: Annotated[
        str | None, typer.Option("--system", help="What the model is told first.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show what the engine decides, and why.")
    ] = False,
    *,
    sampling: Values,
    engine: Values,
) -> None:
    """Talk with a model; it remembers the conversation."""
    import dataclasses

    from chairlift.cli.terminal import show_log
    from chairlift.engine.llm import LLM

    SamplingParams(**sampling)
    EngineConfig(**engine)
    show_log(quiet=not verbose)
    llm = LLM(**engine)
    params = dataclasses.replace(llm.get_default_sampling_params(), **sampling)
    Conversation(llm, params, system).run()
    llm.close()


class Conversation:
    """Reads messages, shows answers, keeps both."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._llm.render_chat([*self._start, {"role": "user", "content": ""}])  # or say so now

    def run(self) -> None:
        """Until /exit or the end of the input."""
        from chairlift.cli.terminal import note

        is_terminal = sys.stdin.isatty()
        if is_terminal:
            import readline  # noqa: F401  (gives `input` its line editing)

            note(HELP_LINE)
        while True:
            try:
                line = input("> ") if is_terminal else input()
            except EOFError:
                if is_terminal:
                    note("")
                return
            except KeyboardInterrupt:
                if not is_terminal:
                    raise
                note("")
                continue
            if line.strip() == "/exit":
                return
            self._take(line)

    def _take(self, line: str) -> None:
        from chairlift.cli.terminal import note
        from chairlift.errors import RequestError

        command = line.strip()
        if not command:
            return
        if command == "/reset":
            self._messages = list(self._start)
        elif command.startswith("/"):
            note(f"unknown command {command.split()[0]}: {HELP_LINE}")
        else:
            self._messages.append({"role": "user", "content": line})
            try:
                answer = self._answer()
            except RequestError as error:  # most of all, a conversation that has become too long
                self._messages.pop()
                note(f"error: {error}; /reset starts over")
            else:
                self._messages.append({"role": "assistant", "content": answer})

    def _answer(self) -> str:
        """Show the answer as it comes; Ctrl-C ends it between two steps."""
        from chairlift.cli.terminal import show

        text = ""
        with _Interrupt() as interrupt:
            stream = self._llm.stream(self._llm.render_chat(self._messages), self._params)
            for output in stream:
                so_far = output.outputs[0].text
                show(so_far[len(text) :], end="")
                text = so_far
                if interrupt.is_set:
                    break
            stream.close()  # type: ignore[attr-defined]  # aborts what is left
        show("")
        return text


class _Interrupt:
    """Notes Ctrl-C instead of raising it, which could leave the engine in the middle of a step."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> _Interrupt:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
