"""What the checks in Python share: a promise is a function; each ends as one printed line."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

URL = os.environ["CHAIRLIFT_URL"]
API_KEY = os.environ["CHAIRLIFT_API_KEY"] or "unused"

_promises: list[Callable[[], Any]] = []


def promise(function: Callable[[], Any]) -> Callable[[], Any]:
    """Registers a function, plain or async; its name is what it promises."""
    _promises.append(function)
    return function


def keep_promises() -> None:
    """Run all of them in order; the exit code is 1 if one was broken.

    What the client prints meanwhile goes to the errors: lines on the output are promises.
    """
    is_good = True
    for function in _promises:
        name = function.__name__.replace("_", " ")
        try:
            with redirect_stdout(sys.stderr):
                if inspect.iscoroutinefunction(function):
                    asyncio.run(function())
                else:
                    function()
            print(f"ok {name}", flush=True)
        except Exception as error:
            is_good = False
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
            print(f"FAILED {name}: {said}", flush=True)
    sys.exit(0 if is_good else 1)


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Raises AssertionError if it stays untrue; a pause of the machine counts for little."""
    waited_s, last_s = 0.0, time.monotonic()
    while not condition():
        assert waited_s < timeout_s, "waited in vain"
        time.sleep(0.1)
        now_s = time.monotonic()
        waited_s += min(0.5, now_s - last_s)
        last_s = now_s


def get(path: str) -> str:
    """The text of a page of the server."""
    return _call(urllib.request.Request(URL + path))


def post(path: str, body: object) -> Any:
    """The JSON of an answer."""
    headers = {"content-type": "application/json"}
    data = json.dumps(body).encode()
    return json.loads(_call(urllib.request.Request(URL + path, data=data, headers=headers)))


def model_name() -> str:
    """What the server calls its model."""
    return str(json.loads(get("/v1/models"))["data"][0]["id"])


def metric(name: str, **labels: str) -> float:
    """A value of /metrics, summed over the labels that are not given."""
    lines = get("/metrics").splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith((f"{name} ", f"{name}{{")) and all(text in line for text in wanted)
    )


def run_tool(*words: object) -> str:
    """A command of the client's own environment; what it prints.  Raises AssertionError."""
    name, *rest = (str(word) for word in words)
    command: Sequence[str] = [str(Path(sys.executable).parent / name), *rest]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    assert done.returncode == 0, f"{name} ended with {done.returncode}: {text[-3000:]}"
    return text


def _call(request: urllib.request.Request) -> str:
    request.add_header("authorization", f"Bearer {API_KEY}")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(answer.read().decode())
