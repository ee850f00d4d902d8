"""Every option of the server that is not the engine's, in the names that vLLM's users know.

The docstring under a field is its help text on the command line and in the documentation.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from chairlift.errors import ConfigError

LogFormatName = Literal["text", "json"]
MetricsCompat = Literal["vllm", "none"]
ToolParserName = Literal[
    "auto",
    "none",
    "hermes",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "pythonic",
    "olmo3",
    "lfm2",
    "mistral",
    "qwen3_coder",
    "qwen3_xml",
    "glm45",
    "openai",
]
ReasoningParserName = Literal[
    "auto", "none", "deepseek_r1", "qwen3", "glm45", "mistral", "seed_oss", "openai_gptoss"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What the user asked for.  Raises `ConfigError`, naming the field, on a bad value."""

    host: str = "127.0.0.1"
    """Address to listen on.  Any but loopback needs an API key, or --insecure."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead of host and port."""
    served_model_name: Sequence[str] = ()
    """Name of the model in the API; several are aliases, and answers carry the first.
    Default: the model as it was asked for."""
    chat_template: str | None = None
    """File with a chat template, or the template itself on one line.  Default: the model's own."""
    tool_parser: ToolParserName = "auto"
    """How the model writes calls of tools; --tool-call-parser is the same.  auto goes by the chat
    template; with none the model calls a tool only where a request requires it."""
    enable_auto_tool_choice: bool = True
    """Let the model decide whether it calls a tool; otherwise a request must require a call."""
    reasoning_parser: ReasoningParserName = "auto"
    """How the model marks what it thinks before it speaks.  auto goes by the chat template; none
    leaves thoughts in the text."""
    api_key: Sequence[str] = ()
    """A key that clients must send; may be given more than once."""
    api_key_file: str | None = None
    """File with one key per line: KEY, or NAME KEY, and after it weight=N for its share beside
    other keys and priority=N for the best that it may ask for.  Lines that begin with # are left
    out."""
    key_weight: Sequence[str] = ()
    """NAME=WEIGHT: a key's share of the engine beside those of other keys, 1 where none is given;
    may be given more than once.  Keys of --api-key are called key-1, key-2 and so on."""
    insecure: bool = False
    """Listen beyond loopback without any API key."""
    allowed_host: Sequence[str] = ()
    """A Host header to accept beside the names of loopback; may be given more than once.  Beyond
    loopback every host is accepted unless this is given."""
    cors_origin: Sequence[str] = ()
    """A web page's origin that may call the API from a browser; may be given more than once.  *
    means any.  Without it, cross-origin calls are refused."""
    ssl_keyfile: str | None = None
    """Private key for TLS, in a PEM file."""
    ssl_certfile: str | None = None
    """Certificate chain for TLS, in a PEM file."""
    max_queued_requests: int = 512
    """Prompts that may wait for their first step; further ones get status 429 with a time to come
    back."""
    max_queued_tokens: int = 262_144
    """Tokens of prompts that may wait for their first step, all together."""
    max_queued_requests_per_key: int | None = None
    """Prompts of one API key that may wait.  Default, with several keys: what the others leave
    free, and half of the queue at most."""
    max_queued_tokens_per_key: int | None = None
    """Tokens of one API key's prompts that may wait.  Default: as for requests."""
    max_body_size: int = 32 * 2**20
    """Largest body of a request, in bytes."""
    max_connections: int | None = None
    """Open connections at most.  Default: 4096, or less where the limit of open files is lower."""
    request_timeout: float | None = None
    """Deadline in seconds for requests that bring none of their own; they get status 504."""
    ping_interval: float = 10.0
    """Seconds without a token after which a stream gets a comment that keeps its line open."""
    slow_client_timeout: float = 30.0
    """Seconds after which the stream of a client that does not read is aborted."""
    shutdown_timeout: float = 30.0
    """Seconds that requests in flight get to finish after SIGTERM."""
    step_timeout: float = 600.0
    """Seconds after which a step of the engine counts as hung and the engine is built anew."""
    strict_fields: bool = False
    """Refuse fields that are unknown or without effect, instead of naming them in the header
    x-chairlift-ignored."""
    usage_timings: bool = False
    """Add the milliseconds in queue, prefill, decode and preemption to the usage of answers."""
    log_format: LogFormatName = "text"
    """text for people, json for one object per line."""
    log_prompts: bool = False
    """Write prompts to the log."""
    access_log: bool = True
    """Write a line per request."""
    metrics_compat: MetricsCompat = "vllm"
    """Whose names /metrics carries beside the server's own: those that vLLM's dashboards and the
    Kubernetes inference gateway read, or none."""
    public_metrics: bool = False
    """Let /metrics be read without an API key."""
    store: str | None = None
    """File in which responses are kept for /v1/responses; memory keeps them until the server ends,
    none keeps none.  Default: store.sqlite in the user's state folder."""
    store_days: float = 30.0
    """Days for which a response is kept."""
    store_size: int = 2**30
    """Largest size of the store, in bytes; the oldest responses make room."""
    otlp_traces_endpoint: str | None = None
    """URL to which OpenTelemetry spans of requests are sent, as OTLP over HTTP, such as
    http://localhost:4318/v1/traces.  Needs the extra chairlift[otel]."""

    def __post_init__(self) -> None:
        _integer("port", self.port, 0, 65_535)
        _integer("max_queued_requests", self.max_queued_requests, 1)
        _integer("max_queued_tokens", self.max_queued_tokens, 1)
        for name in ("max_queued_requests_per_key", "max_queued_tokens_per_key"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 1)
        _integer("max_body_size", self.max_body_size, 1024)
        if self.max_connections is not None:
            _integer("max_connections", self.max_connections, 1)
        if self.request_timeout is not None:
            _seconds("request_timeout", self.request_timeout, 1e-3)
        for name in ("ping_interval", "slow_client_timeout", "step_timeout"):
            _seconds(name, getattr(self, name), 1e-2)
        _seconds("shutdown_timeout", self.shutdown_timeout, 0.0)
        _number("store_days", self.store_days, 1e-6, "days")
        _integer("store_size", self.store_size, 2**16)
        if self.store == "":
            raise ConfigError("store must be a file, memory or none", field="store")
        _choice("log_format", self.log_format, get_args(LogFormatName))
        _choice("metrics_compat", self.metrics_compat, get_args(MetricsCompat))
        _choice("tool_parser", self.tool_parser, get_args(ToolParserName))
        _choice("reasoning_parser", self.reasoning_parser, get_args(ReasoningParserName))
        if self.otlp_traces_endpoint is not None:
            _http_url("otlp_traces_endpoint", self.otlp_traces_endpoint)
        for name in ("served_model_name", "allowed_host", "cors_origin", "api_key", "key_weight"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(x, str) and x for x in value):
                raise ConfigError(f"{name} must hold texts that are not empty", field=name)
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError(
                "ssl_keyfile and ssl_certfile go together: give both or none", field="ssl_certfile"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.uds is not None or is_loopback(self.host)

    @property
    def has_keys(self) -> bool:
        return bool(self.api_key) or self.api_key_file is not None

    def check_exposure(self) -> None:
        """Raises `ConfigError` if strangers could use the server without a key."""
        if not (self.is_local or self.has_keys or self.insecure):
            raise ConfigError(
                f"host {self.host} is reachable from other machines: set --api-key or"
                " --api-key-file, or say --insecure",
                field="host",
            )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}", field=name)


def _http_url(name: str, value: object) -> None:
    try:
        is_url = isinstance(value, str) and bool(urlsplit(value).hostname)
    except ValueError:
        is_url = False
    if not is_url or not str(value).startswith(("http://", "https://")):
        raise ConfigError(f"{name} must be an http or https URL, got {value!r}", field=name)


def _integer(name: str, value: object, low: int, high: int = 2**62) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"at least {low}" if high == 2**62 else f"between {low} and {high}"
        raise ConfigError(f"{name} must be an integer, {limit}, got {value!r}", field=name)


def _seconds(name: str, value: object, low: float) -> None:
    _number(name, value, low, "seconds")


def _number(name: str, value: object, low: float, unit: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= 1e9:  # type: ignore[operator]
        raise ConfigError(f"{name} must be {unit}, at least {low:g}, got {value!r}", field=name)
