"""One line per request, and log lines that a client's text cannot break out of."""

from __future__ import annotations

import logging
from collections.abc import Callable

from chairlift.server.exchange import Exchange
from chairlift.server.server_config import ServerConfig

logger = logging.getLogger("chairlift.access")

_MAX_SHOWN_PATH = 200


def access_logger(config: ServerConfig) -> Callable[[Exchange], None]:
    """Writes the line of a request that is over."""
    return _write if config.access_log else _write_nothing


def _write(exchange: Exchange) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    fields = {
        "client": exchange.client,
        "method": exchange.method,
        "path": exchange.path[:_MAX_SHOWN_PATH],
        "status": exchange.status,
        "code": exchange.error_code,
        "duration_ms": round(exchange.duration_s * 1e3, 1),
        "request_id": exchange.request_id,
        "key": exchange.key_name or None,
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in exchange.outputs),
        "completion_tokens": sum(
            len(item.token_ids) for output in exchange.outputs for item in output.outputs
        ),
    }
    shown = f" {exchange.error_code}" if exchange.error_code else ""
    if exchange.outputs:
        shown += f", {fields['prompt_tokens']} tokens in, {fields['completion_tokens']} out"
    logger.info(
        "%s %s %s %d%s, %.1f ms, %s",
        exchange.client,
        exchange.method,
        fields["path"],
        exchange.status,
        shown,
        fields["duration_ms"],
        exchange.request_id,
        extra={"fields": fields},
    )


def _write_nothing(exchange: Exchange) -> None:
    return
