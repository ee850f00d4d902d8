"""API keys: who may come in, and whose request it is.

Keys are kept as SHA-256 digests, and every comparison looks at all of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chairlift.errors import ConfigError
from chairlift.server.errors import invalid_api_key
from chairlift.server.server_config import ServerConfig

PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Everything else is guarded, whether it exists or not."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's digest and the name under which its owner is known here."""

    name: str
    digest: bytes


class KeyRing:
    """All keys.  Without any, everybody may come in."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def owner(self, headers: Mapping[bytes, bytes]) -> str:
        """Whose key a request brings; "" if there are no keys.  Raises `ApiError`."""
        if not self._keys:
            return ""
        secret = _secret(headers)
        if not secret:
            raise invalid_api_key("an API key is needed: Authorization: Bearer KEY")
        digest = hashlib.sha256(secret).digest()
        found = None
        for key in self._keys:  # all of them: the time must not tell which one was close
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise invalid_api_key("the API key is not valid here")
        return found.name


def read_keys(config: ServerConfig) -> KeyRing:
    """Keys of the command line and of the key file.  Raises `ConfigError`."""
    entries = [(f"key-{number}", key) for number, key in enumerate(config.api_key, 1)]
    if config.api_key_file is not None:
        entries += _read_file(Path(config.api_key_file), len(entries))
    names, secrets = [name for name, _ in entries], [secret for _, secret in entries]
    for secret in secrets:
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise ConfigError("an API key must be printable ASCII without spaces", field="api_key")
    if len(set(names)) < len(names) or len(set(secrets)) < len(secrets):
        raise ConfigError("API keys and their names must differ from each other", field="api_key")
    return KeyRing([ApiKey(name, hashlib.sha256(key.encode()).digest()) for name, key in entries])


def _read_file(path: Path, num_before: int) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise ConfigError(
            f"cannot read the key file {path}: {reason}", field="api_key_file"
        ) from None
    entries: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ConfigError(
                f"line {number} of {path} must be KEY or NAME KEY", field="api_key_file"
            )
        name = words[0] if len(words) == 2 else f"key-{num_before + len(entries) + 1}"
        entries.append((name, words[-1]))
    if not entries:
        raise ConfigError(f"the key file {path} holds no key", field="api_key_file")
    return entries


def _secret(headers: Mapping[bytes, bytes]) -> bytes:
    """The key of `Authorization: Bearer KEY`, or of `x-api-key`."""
    scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return headers.get(b"x-api-key", b"").strip()
