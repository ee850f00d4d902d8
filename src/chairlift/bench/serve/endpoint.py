"""Where requests go: an address taken apart, and which of the two APIs stands there."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from chairlift.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_VERSION = "/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server, the prefix of its paths, and the path that is measured."""

    scheme: str
    host: str
    port: int
    prefix: str
    """Before every path; mostly empty."""
    path: str
    """Without the prefix."""

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}{self.path}"


def parse_endpoint(base_url: str, path: str) -> Endpoint:
    """Raises `ConfigError`.  A `base_url` that ends in /v1 is understood, too."""
    if not path.startswith("/") or not path.endswith("/completions") or not _is_plain(path):
        raise ConfigError(
            f"endpoint takes /v1/completions or /v1/chat/completions, got {path!r}",
            field="endpoint",
        )
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _bad_base_url(base_url, str(error)) from None
    if parts.scheme not in _PORTS or not host:
        raise _bad_base_url(base_url, "it needs a scheme and a host")
    if parts.query or parts.fragment or parts.username or not _is_plain(base_url):
        raise _bad_base_url(base_url, "only scheme, host, port and path are allowed")
    prefix = parts.path.rstrip("/")
    if path.startswith(_VERSION + "/"):
        prefix = prefix.removesuffix(_VERSION)
    return Endpoint(
        scheme=parts.scheme,
        host=host,
        port=port or _PORTS[parts.scheme],
        prefix=prefix,
        path=path,
    )


def _is_plain(text: str) -> bool:
    """Nothing that could break a request line."""
    return text.isascii() and text.isprintable() and " " not in text


def _bad_base_url(base_url: str, reason: str) -> ConfigError:
    return ConfigError(
        f"base_url takes an address such as http://127.0.0.1:8000, got {base_url!r}: {reason}",
        field="base_url",
    )
