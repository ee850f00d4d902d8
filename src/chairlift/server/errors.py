"""Errors in the shape that OpenAI's clients read: {"error": {message, type, param, code}}.

Every failure of a request is an `ApiError`; nothing else reaches a client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from chairlift.errors import ContextLengthError, RequestError

INVALID_REQUEST = "invalid_request_error"
CLIENT_CLOSED = 499
"""Only in logs and metrics: nobody is left to read it."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{5,}")
_DO_NOT_RETRY = (b"x-should-retry", b"false")


class ApiError(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        code: str | None = None,
        param: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        message = _ADDRESS.sub("0x...", message)  # where things lie in memory is nobody's business
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = list(headers)

    def body(self) -> bytes:
        """The JSON of the answer."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode("ascii")


class ClientClosed(Exception):
    """The client has gone: there is nobody to answer."""


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, message: str) -> ApiError:
    """A field that is known and cannot be honoured."""
    return bad_request(message, param=param, code="unsupported_parameter")


def of_request_error(error: RequestError) -> ApiError:
    """What the engine found wrong with a request."""
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    return bad_request(str(error), param=error.field, code=code)


def invalid_api_key(message: str) -> ApiError:
    headers = [(b"www-authenticate", b"Bearer")]
    return ApiError(401, message, code="invalid_api_key", headers=headers)


def forbidden(message: str, *, code: str = "forbidden") -> ApiError:
    return ApiError(403, message, type="permission_error", code=code)


def not_found(message: str, *, code: str | None = None, param: str | None = None) -> ApiError:
    return ApiError(404, message, code=code, param=param)


def method_not_allowed(method: str, allowed: bytes) -> ApiError:
    return ApiError(
        405,
        f"this path does not take {method}; it takes {allowed.decode('ascii')}",
        code="method_not_allowed",
        headers=[(b"allow", allowed)],
    )


def too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes",
        code="request_too_large",
    )


def too_slow(message: str) -> ApiError:
    return ApiError(408, message, code="request_timeout", headers=[(b"connection", b"close")])


def unsupported_media_type(message: str) -> ApiError:
    return ApiError(415, message, code="unsupported_media_type")


def queue_full(message: str, retry_after_s: int) -> ApiError:
    return _come_back("queue_full", message, retry_after_s)


def key_queue_full(message: str, retry_after_s: int) -> ApiError:
    """There is room, but not for more of this key."""
    return _come_back("key_queue_full", message, retry_after_s)


def deadline_unreachable(message: str, retry_after_s: int) -> ApiError:
    """There is room, but not enough time."""
    return _come_back("deadline_unreachable", message, retry_after_s)


def _come_back(code: str, message: str, retry_after_s: int) -> ApiError:
    return ApiError(
        429,
        message,
        type="rate_limit_error",
        code=code,
        headers=[_retry_after(retry_after_s)],
    )


def unavailable(code: str, message: str, retry_after_s: int) -> ApiError:
    return ApiError(
        503,
        message,
        type="service_unavailable",
        code=code,
        headers=[_retry_after(retry_after_s)],
    )


def deadline_exceeded(message: str) -> ApiError:
    return ApiError(
        504, message, type="server_error", code="deadline_exceeded", headers=[_DO_NOT_RETRY]
    )


def internal_error(request_id: str, *, code: str = "internal_error") -> ApiError:
    """Says nothing of the insides: those are in the log, under the request's id."""
    return ApiError(
        500,
        f"the server failed on this request; its log has more under {request_id}",
        type="server_error",
        code=code,
    )


def _retry_after(seconds: int) -> tuple[bytes, bytes]:
    return b"retry-after", b"%d" % max(1, seconds)
