"""The `chairlift` command.  Every mistake of the user's is one line and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from chairlift._version import __version__
from chairlift.cli import bench, chat, demo, generate, info, pull, serve
from chairlift.errors import ChairliftError

USER_MISTAKE = 2
INTERRUPTED = 130
BROKEN_PIPE = 1
_NO_MEMORY = ("Cannot allocate memory", "failed to map segment", "can't start new thread")
"""What the system, its loader and Python say when there is none for them."""

# Plain help: rich would cost a third of the time that `chairlift --help` takes.
app = typer.Typer(
    name="chairlift",
    help="LLM serving with continuous batching on any CPU.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("pull")(pull.pull)
app.command("info")(info.info)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(list(arguments), prog_name="chairlift", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except ChairliftError as error:
        return _report(str(error))
    except Exception as error:
        message = _memory_message(error) or _usage_message(error)
        if message is None:
            raise
        return _report(message)


def _memory_message(error: BaseException | None) -> str | None:
    """For what has failed because this process may have no more memory; None for anything else."""
    while error is not None:
        if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
            return "out of memory: free some, raise the limit, or lower kv_cache_memory"
        error = error.__cause__ or error.__context__
    return None


def _usage_message(error: Any) -> str | None:
    """What the option parser says; it has its own class of exceptions, which has no public name."""
    return error.format_message() if hasattr(error, "format_message") else None


def _report(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return USER_MISTAKE
