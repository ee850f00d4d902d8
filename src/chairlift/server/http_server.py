"""Sockets, signals and the life of the process around the ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from chairlift.errors import ConfigError
from chairlift.server.app import create_app
from chairlift.server.errors import ApiError
from chairlift.server.http_protocol import BoundedHttpProtocol
from chairlift.server.server_config import ServerConfig
from chairlift.server.serving import Serving

logger = logging.getLogger("chairlift")

DEFAULT_MAX_CONNECTIONS = 4096
_SPARE_FILES = 64
"""Descriptors for everything that is no connection."""
_BACKLOG = 2048
_SEND_BUFFER_BYTES = 128 * 1024
"""Of the system's memory for a client that does not read; by itself it would take megabytes.
Accepted sockets have it from the one that listens."""
_ABORT_GRACE_S = 2.0
_KEEP_ALIVE_S = 75
_SWITCH_INTERVAL_S = 0.001
"""How long a thread keeps Python's lock when the event loop wants it: some of each connection's
calls into the system give it away, and Python's own 5 ms would be waited for after each of them."""
_CLOSING_S = 3
"""For the last bytes of answers, once all requests are done."""


def open_socket(config: ServerConfig) -> socket.socket:
    """Take the address, before anything else costs time.  Raises `ConfigError`."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(socket.AF_UNIX if config.uds is not None else family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        if config.uds is not None:
            _bind_unix(listener, Path(config.uds))
        else:
            if sys.platform != "win32":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        place = config.uds or f"{config.host}:{config.port}"
        raise ConfigError(f"cannot listen on {place}: {error.strerror}", field="port") from None
    return listener


def _bind_unix(listener: socket.socket, path: Path) -> None:
    """For this user only.  What an earlier server left behind is in the way."""
    if path.is_socket():
        path.unlink()
    listener.bind(str(path))
    path.chmod(0o600)


def address_of(listener: socket.socket, config: ServerConfig) -> str:
    """Where clients find the server."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    port = listener.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}"


class HttpServer(uvicorn.Server):
    """Serves until a signal; drains after the first one, and leaves at once at the second.

    `run_until_stopped` is for the main thread; tests call `serve_in_loop` and `stop`.
    """

    def __init__(self, serving: Serving) -> None:
        """Raises `ConfigError` if it cannot listen, or a certificate cannot be used."""
        self.serving = serving
        self._has_signal = False
        self._num_noted_rebuilds = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        config = serving.config
        protocol = type(
            "Protocol", (BoundedHttpProtocol,), {"max_connections": _max_connections(config)}
        )
        super().__init__(
            uvicorn.Config(
                create_app(serving),
                http=protocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSING_S,
                ssl_keyfile=config.ssl_keyfile,
                ssl_certfile=config.ssl_certfile,
            )
        )
        try:
            self.config.load()
        except OSError as error:  # an SSLError is one
            raise ConfigError(
                f"cannot use the certificate or its key: {error}", field="ssl_certfile"
            ) from None
        self.listener = open_socket(config)
        self._address = address_of(self.listener, config)

    def run_until_stopped(self) -> Exception | None:
        """Serve; returns what made serving impossible, if anything did."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
            runner.run(self.serve_in_loop(has_signals=True))
        supervisor = self.serving.supervisor
        return supervisor.failure if supervisor.num_rebuilds == 0 else None

    async def serve_in_loop(self, *, has_signals: bool = False) -> None:
        """Serve in the running loop until stopped."""
        self._loop = asyncio.get_running_loop()
        supervisor = self.serving.supervisor
        supervisor.on_change = self._engine_changed
        supervisor.start()
        sweeping = asyncio.create_task(self.serving.sweeper.run())
        measuring = asyncio.create_task(self.serving.metrics.run())
        try:
            with self._signals() if has_signals else contextlib.nullcontext():
                await self._serve([self.listener])
        finally:
            sweeping.cancel()
            measuring.cancel()
            try:
                await asyncio.to_thread(supervisor.shutdown)
            except RuntimeError:  # there is no memory for a thread
                supervisor.shutdown()
            self.serving.close()

    def stop(self) -> None:
        """Drain and end.  In the loop's thread."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        lifecycle, timeout_s = self.serving.lifecycle, self.serving.config.shutdown_timeout
        logger.info("shutting down: %d requests in flight", lifecycle.num_in_flight)
        if not await lifecycle.drain(timeout_s):
            logger.warning("%d requests were cut short", lifecycle.num_in_flight)
            await asyncio.to_thread(self.serving.supervisor.shutdown)
            self.force_exit = not await lifecycle.wait_idle(_ABORT_GRACE_S)
        self.should_exit = True

    def _engine_changed(self) -> None:
        """In the supervisor's thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._note_engine_state)

    def _note_engine_state(self) -> None:
        supervisor = self.serving.supervisor
        while self._num_noted_rebuilds < supervisor.num_rebuilds:  # one may be over already
            self._num_noted_rebuilds += 1
            self.serving.metrics.engine_rebuilt()
        if supervisor.state == "running":
            with contextlib.suppress(ApiError):  # it may have gone again
                self.serving.engine()  # what is to be known of the model, before it is asked for
            logger.info("ready: %s", self._address)
        elif supervisor.state == "dead" and supervisor.num_rebuilds == 0:
            self.should_exit = self.force_exit = True  # it never worked: say why and leave

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handlers that work even while the loop is busy."""
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        if sys.platform != "win32":  # a terminal that closes is no reason to end
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._has_signal:
            os._exit(128 + number)
        self._has_signal = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.stop)


def _max_connections(config: ServerConfig) -> int:
    """What was asked for, or what the limit of open files leaves room for."""
    if config.max_connections is not None:
        return config.max_connections
    return min(DEFAULT_MAX_CONNECTIONS, max(1, _file_limit() - _SPARE_FILES))


def _file_limit() -> int:
    if sys.platform == "win32":
        return DEFAULT_MAX_CONNECTIONS + _SPARE_FILES
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft
