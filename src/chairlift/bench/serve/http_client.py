"""Requests to one server over connections that are kept and used again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping

from chairlift.bench.serve.endpoint import Endpoint
from chairlift.bench.serve.http_connection import ConnectionLostError, HttpConnection, Receiver


class HttpClient:
    """Belongs to the event loop that runs."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str], *, timeout_s: float) -> None:
        """`headers` go with every request; `timeout_s` is for one whole answer."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._headers = "".join(
            f"{name}: {value}\r\n"
            for name, value in {
                "host": endpoint.authority,
                "user-agent": "chairlift-bench",
                "accept-encoding": "identity",
                **headers,
            }.items()
        )
        self._tls = ssl.create_default_context() if endpoint.scheme == "https" else None
        self._idle: list[HttpConnection] = []
        self._address: str | None = None
        """The one of the host's addresses that answers; found once."""

    async def get(self, path: str, receiver: Receiver) -> None:
        """Raises as `post` does."""
        await self._exchange(self._request("GET", path, "", None), receiver)

    async def post(
        self, path: str, body: bytes, receiver: Receiver, request_id: str | None = None
    ) -> None:
        """Return when the receiver has the whole answer.

        Raises `OSError` if there is no connection to be had, `TimeoutError`, `HttpError`, and
        `ConnectionLostError`.
        """
        extra = "content-type: application/json\r\n"
        if request_id is not None:
            extra += f"x-request-id: {request_id}\r\n"
        await self._exchange(self._request("POST", path, extra, body), receiver)

    def close(self) -> None:
        """Close the connections that nobody uses; the others close when their answers end."""
        while self._idle:
            self._idle.pop().close()

    def _request(self, method: str, path: str, extra: str, body: bytes | None) -> bytes:
        if body is not None:
            extra += f"content-length: {len(body)}\r\n"
        head = f"{method} {self._endpoint.prefix}{path} HTTP/1.1\r\n{self._headers}{extra}\r\n"
        return head.encode("latin-1") + (body or b"")

    async def _exchange(self, request: bytes, receiver: Receiver) -> None:
        async with asyncio.timeout(self._timeout_s):
            while True:
                connection = await self._connection()
                try:
                    await connection.ask(request, receiver)
                except ConnectionLostError as error:
                    # A server may close an idle connection while a request is on its way to it.
                    if connection.num_answers == 0 or error.had_answer:
                        raise
                    continue
                if connection.is_open:
                    self._idle.append(connection)
                return

    async def _connection(self) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        if self._address is None:
            self._address, connection = await self._first_connection()
            return connection
        return await self._connect(self._address)

    async def _first_connection(self) -> tuple[str, HttpConnection]:
        """Tries the host's addresses one after the other."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM
        )
        failure: OSError | None = None
        for address in dict.fromkeys(str(entry[4][0]) for entry in found):
            try:
                return address, await self._connect(address)
            except OSError as error:
                failure = failure or error
        raise failure or OSError(f"{self._endpoint.host} has no address")

    async def _connect(self, address: str) -> HttpConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            HttpConnection,
            address,
            self._endpoint.port,
            ssl=self._tls,
            server_hostname=self._endpoint.host if self._tls else None,
        )
        return connection


def allow_open_connections(count: int) -> int:
    """Raise this process's limit of open files for `count` connections, as far as it may.

    Returns how many connections it allows.
    """
    spare = 64
    with contextlib.suppress(ImportError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return count
        wanted = count + spare
        if soft < wanted:
            wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        return min(count, soft - spare)
    return count
