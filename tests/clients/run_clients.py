"""Runs unmodified clients against `chairlift serve`; `scripts/clients` is its door.

Each client has an environment and a server of its own; a check is one script that prints a line
per promise.  A client that cannot be installed here has failed, and the reason is said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients.chairlift_process import ChairliftProcess, chairlift_process
from clients.client_check import ClientCheck, all_checks
from clients.client_environment import ClientEnvironment, NotInstalled
from clients.tokenizer_folder import write_tokenizer

HOME = Path(os.environ.get("CHAIRLIFT_CLIENTS", "~/.cache/chairlift-clients")).expanduser()
CHECK_S = 1800
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
"""Clients talk to the server and to nobody else."""


@dataclass(frozen=True)
class ClientResult:
    """How a client's check went."""

    check: ClientCheck
    passed: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return bool(self.passed) and not self.failed

    def row(self) -> str:
        """A line of the table."""
        outcome = "passed" if self.is_good else f"FAILED: {'; '.join(self.failed) or 'no check'}"
        outcome = outcome.partition("\n")[0].replace("|", "/")
        return f"| `{self.check.name}` | {self.check.versions} | {len(self.passed)} | {outcome} |"


def run_check(
    check: ClientCheck, command: Sequence[str], server: ChairliftProcess, folder: Path
) -> ClientResult:
    """Run a check's script against a server, and look at the server afterwards.

    `folder` is for what the client writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder / "tokenizer")
    environment = {**os.environ, **OFFLINE, **server.environment()}
    environment |= {"CHAIRLIFT_TOKENIZER": str(tokenizer), "PYTHONPATH": ""}
    code, output, errors = run_script(command, folder, environment)
    (folder / "output").write_text(f"{output}\n--- errors, code {code}\n{errors}")
    lines = output.splitlines()
    passed = [line.removeprefix("ok ") for line in lines if line.startswith("ok ")]
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    if code != 0 and not failed:
        failed.append(f"code {code}: {errors.strip()[-1000:]}")
    try:
        server.check_unharmed()
        assert server.end() == 0, "the server did not end well"
        passed.append("the server is as before, and ends")
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        failed.append(f"the server is not as before: {error}")
    return ClientResult(check, tuple(passed), tuple(failed))


def run_script(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Its exit code, output and errors; 124 if it took too long.  Leaves no process behind."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=errors,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(CHECK_S)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            with suppress(ProcessLookupError):  # the script and whatever it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()


def run_client(check: ClientCheck, home: Path) -> ClientResult:
    """Install the client if need be, and run its check."""
    environment = ClientEnvironment(check, home / "environments")
    try:
        environment.install(say)
    except NotInstalled as reason:
        return ClientResult(check, (), (f"cannot be installed here: {reason}",))
    folder = home / "runs" / check.name
    folder.mkdir(parents=True, exist_ok=True)
    command = environment.command(script_of(check, environment))
    try:
        with chairlift_process(check.serve_options, folder / "server.log") as server:
            return run_check(check, command, server, folder)
    except RuntimeError as error:
        return ClientResult(check, (), (str(error),))


def script_of(check: ClientCheck, environment: ClientEnvironment) -> Path:
    """Node looks for packages beside a script, so its checks are copied there."""
    if check.is_python:
        return check.path
    for path in check.path.parent.glob("*.mjs"):
        shutil.copyfile(path, environment.folder / path.name)
    return environment.folder / check.path.name


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    checks = all_checks()
    parser = argparse.ArgumentParser(
        prog="scripts/clients", description="Runs unmodified clients against chairlift serve."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(checks)}")
    names = parser.parse_args().names or list(checks)
    unknown = [name for name in names if name not in checks]
    if unknown:
        parser.error(f"there is no client {unknown[0]}; there are {', '.join(checks)}")
    results = []
    for name in names:
        say(f"== {name}")
        result = run_client(checks[name], HOME)
        for passed in result.passed:
            say(f"   ok {passed}")
        for failed in result.failed:
            say(f"   FAILED {failed}")
        results.append(result)
    print("| client | version | checks | result |\n| --- | --- | --- | --- |")
    for result in results:
        print(result.row())
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
