"""API keys: who may come in, and whose request it is.

Keys are kept as SHA-256 digests, and every comparison looks at all of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.fair_share import MAX_WEIGHT
from chairlift.errors import ConfigError
from chairlift.server.errors import invalid_api_key
from chairlift.server.server_config import ServerConfig

PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Everything else is guarded, whether it exists or not."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OPTION = re.compile(r"(weight|priority)=(.*)")
_OPTION_RANGES = {"weight": (1, MAX_WEIGHT), "priority": (-1000, 1000)}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key's digest and the name under which its owner is known here."""

    name: str
    digest: bytes
    weight: int = 1
    """Its share of the engine beside those of other keys."""
    priority: int = 0
    """The best (lowest) that its requests may ask for, where there are several keys."""
    is_named: bool = True
    """By its owner, and not for its place among the others."""

    @property
    def tenant(self) -> str:
        """Whose things are kept under it: a name outlives a key, but a place may be another's
        tomorrow."""
        return f"name:{self.name}" if self.is_named else f"key:{self.digest.hex()}"


class KeyRing:
    """All keys.  Without any, everybody may come in."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> list[str]:
        return [key.name for key in self._keys]

    @property
    def weights(self) -> dict[str, int]:
        """Shares of the engine by name."""
        return {key.name: key.weight for key in self._keys}

    def best_priority(self, name: str) -> int | None:
        """What a key's requests may ask for at best; None: whatever they like."""
        if len(self._keys) < 2:
            return None
        return next((key.priority for key in self._keys if key.name == name), 0)

    def tenant(self, name: str) -> str:
        """Whose things are kept under a key's name; "" for everybody's, where there are no keys."""
        return next((key.tenant for key in self._keys if key.name == name), "")

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


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key as it was written down."""

    name: str
    secret: str
    weight: int = 1
    priority: int = 0
    is_named: bool = False


def read_keys(config: ServerConfig) -> KeyRing:
    """Keys of the command line and of the key file.  Raises `ConfigError`."""
    entries = [_Entry(f"key-{number}", key) for number, key in enumerate(config.api_key, 1)]
    if config.api_key_file is not None:
        entries += _read_file(Path(config.api_key_file), len(entries))
    for entry in entries:
        secret = entry.secret
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise ConfigError("an API key must be printable ASCII without spaces", field="api_key")
    names, secrets = {entry.name for entry in entries}, {entry.secret for entry in entries}
    if len(names) < len(entries) or len(secrets) < len(entries):
        raise ConfigError("API keys and their names must differ from each other", field="api_key")
    weights = _read_weights(config.key_weight, names)
    return KeyRing(
        [
            ApiKey(
                entry.name,
                hashlib.sha256(entry.secret.encode()).digest(),
                weights.get(entry.name, entry.weight),
                entry.priority,
                entry.is_named,
            )
            for entry in entries
        ]
    )


def _read_weights(asked: Sequence[str], names: Collection[str]) -> dict[str, int]:
    """What `key_weight` says of keys that there are."""
    weights = {}
    for text in asked:
        name, _, value = text.rpartition("=")
        if name not in names:
            known = ", ".join(sorted(names)[:8]) or "no key at all"
            raise ConfigError(
                f"key_weight must be NAME=WEIGHT with the name of a key, got {text!r}; there is"
                f" {known}",
                field="key_weight",
            )
        weights[name] = _option("weight", value, "key_weight", f"key_weight {text!r}")
    return weights


def _read_file(path: Path, num_before: int) -> list[_Entry]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise ConfigError(
            f"cannot read the key file {path}: {reason}", field="api_key_file"
        ) from None
    entries: list[_Entry] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            default_name = f"key-{num_before + len(entries) + 1}"
            entries.append(_read_line(words, default_name, f"line {number} of {path}"))
    if not entries:
        raise ConfigError(f"the key file {path} holds no key", field="api_key_file")
    return entries


def _read_line(words: list[str], default_name: str, place: str) -> _Entry:
    """KEY, or NAME KEY, and options such as weight=2 after it."""
    options: dict[str, int] = {}
    while len(words) > 1 and (found := _OPTION.fullmatch(words[-1])) is not None:
        options[found[1]] = _option(found[1], found[2], "api_key_file", place)
        words = words[:-1]
    if len(words) > 2:
        raise ConfigError(
            f"{place} must be KEY or NAME KEY, and may end in weight=N and priority=N",
            field="api_key_file",
        )
    name = words[0] if len(words) == 2 else default_name
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{place}: the name of a key may have 64 letters, digits, dots, dashes and"
            " underscores, for it is shown in logs and metrics",
            field="api_key_file",
        )
    return _Entry(
        name,
        words[-1],
        options.get("weight", 1),
        options.get("priority", 0),
        is_named=len(words) == 2,
    )


def _option(name: str, text: str, field: str, place: str) -> int:
    low, high = _OPTION_RANGES[name]
    is_integer = re.fullmatch("-?[0-9]{1,9}", text) is not None
    if not is_integer or not low <= int(text) <= high:
        raise ConfigError(
            f"{place}: {name} must be an integer between {low} and {high}, got {text[:20]!r}",
            field=field,
        )
    return int(text)


def _secret(headers: Mapping[bytes, bytes]) -> bytes:
    """The key of `Authorization: Bearer KEY`, or of `x-api-key`."""
    scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return headers.get(b"x-api-key", b"").strip()
