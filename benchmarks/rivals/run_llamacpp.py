"""llama.cpp's server on one workload: python run_llamacpp.py BINARIES MODEL.gguf WORKLOAD FLASH

It serves over local HTTP, the others run in this process: it alone pays for that.  BINARIES is the
folder of llama-server, FLASH is on or off.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from workload import MAX_SEQS, Job, jobs_of, num_threads, report, warm_up_of

START_SECONDS = 60
ANSWER_SECONDS = 3600


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_server(binaries: Path, model: str, jobs: list[Job], flash: str, port: int) -> object:
    slots = min(len(jobs), MAX_SEQS)
    longest = max(len(job.prompt) + job.num_tokens for job in jobs)
    options = {
        "-m": model, "-t": num_threads(), "-np": slots, "-c": slots * (longest + 16), "-fa": flash,
        "-b": 2048, "-ub": 512, "--cache-ram": 0, "--host": "127.0.0.1", "--port": port,
    }  # fmt: skip
    words = [str(word) for pair in options.items() for word in pair]
    return subprocess.Popen(
        [str(binaries / "llama-server"), *words, "--no-webui"],
        env={**os.environ, "LD_LIBRARY_PATH": str(binaries)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def wait_until_healthy(server: object, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(port):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"llama-server did not start (code {server.poll()})")
        time.sleep(0.1)


def complete(port: int, job: Job) -> int:
    body = {
        "prompt": job.prompt,
        "n_predict": job.num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    connection.request(
        "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
    )
    return int(json.loads(connection.getresponse().read())["tokens_predicted"])


def main() -> None:
    folder, model, workload, flash = sys.argv[1:]
    jobs, port = jobs_of(workload), free_port()
    server = start_server(Path(folder), model, jobs, flash, port)
    try:
        wait_until_healthy(server, port)
        with ThreadPoolExecutor(len(jobs)) as clients:
            list(clients.map(lambda job: complete(port, job), warm_up_of(jobs)))
            start = time.perf_counter()
            produced = sum(clients.map(lambda job: complete(port, job), jobs))
            seconds = time.perf_counter() - start
    finally:
        server.terminate()
        server.wait()
    settings = f"{Path(model).stem.removeprefix('llama-')}, flash attention {flash}, HTTP"
    report("llama.cpp", settings, jobs, seconds, produced)


main()
