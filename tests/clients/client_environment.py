"""Where a client is installed: a virtual environment or an npm folder of its own.

```
HOME  <client>/           bin/python, or node_modules/
      <client>/installed  its packages, once all of them are there
```
The variable CHAIRLIFT_CLIENT_<NAME> names an environment that is there already, for a client too
large to have twice; its version must be the pinned one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from clients.client_check import ClientCheck, split_pin

_INSTALL_S = 3600


class NotInstalled(Exception):
    """A client that cannot be had on this machine, and why."""


class ClientEnvironment:
    """One client's packages."""

    def __init__(self, check: ClientCheck, home: Path) -> None:
        self._check = check
        given = os.environ.get("CHAIRLIFT_CLIENT_" + check.name.upper().replace("-", "_"))
        self._is_given = given is not None
        self.folder = Path(given).expanduser() if given else home / check.name

    def command(self, script: Path) -> list[str]:
        """How to run a script in it."""
        return [str(self._python), str(script)] if self._check.is_python else ["node", str(script)]

    def install(self, say: Callable[[str], None]) -> None:
        """What is there already stays.  Raises `NotInstalled`."""
        if self._is_given:
            self._check_given()
            return
        stamp = self.folder / "installed"
        check = self._check
        wanted = "\n".join((*check.packages, *check.removed, check.alias or ""))
        if stamp.exists() and stamp.read_text() == wanted:
            return
        say(f"installing {' '.join(self._check.packages)}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self._check.is_python:
            self._install_python()
        else:
            self._install_node()
        stamp.write_text(wanted)

    @property
    def _python(self) -> Path:
        return self.folder / "bin" / "python"

    def _install_python(self) -> None:
        run([sys.executable, "-m", "venv", self.folder])
        pip = [self._python, "-m", "pip", "--disable-pip-version-check", "-q"]
        run([*pip, "install", *self._check.packages])
        if self._check.removed:
            run([*pip, "uninstall", "-y", *self._check.removed])
        if self._check.alias is not None:
            self._name_metadata(self._check.alias)

    def _name_metadata(self, alias: str) -> None:
        """A build under another name, of code that asks for the metadata of the usual one."""
        name, version = split_pin(self._check.packages[0])
        site = next(self.folder.glob("lib/python*/site-packages"))
        given = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata = site / f"{alias}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        text = (given / "METADATA").read_text(encoding="utf-8")
        metadata.write_text(text.replace(f"Name: {name}", f"Name: {alias}", 1), encoding="utf-8")

    def _install_node(self) -> None:
        if shutil.which("npm") is None:
            raise NotInstalled("there is no npm on this machine")
        (self.folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        run(["npm", "install", "--prefix", self.folder, "--save-exact", *self._check.packages])

    def _check_given(self) -> None:
        name, pinned = split_pin(self._check.packages[0])
        ask = f"import importlib.metadata as m; print(m.version({name!r}))"
        found = run([self._python, "-c", ask]).strip()
        if found != pinned:
            raise NotInstalled(f"{self.folder} has {name} {found}, not {pinned}")


def run(command: Sequence[object]) -> str:
    """What it prints.  Raises `NotInstalled` with the end of it."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_INSTALL_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{words[0]}: {error}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise NotInstalled(f"{' '.join(words[:6])} ... failed:\n{said}")
    return done.stdout
