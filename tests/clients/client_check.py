"""One client's check: a file that says in its header what it runs on.

A check is a script in the client's own language.  Its header is the block of inline script metadata
that Python's packaging standards define, behind `#` or `//`:

    # /// script
    # dependencies = ["openai==3.57.0"]     what is installed, pinned; the first is the client
    # [tool.client]
    # serve = ["--api-key", "secret"]       options of `chairlift serve`; none is the default
    # remove = ["torchvision"]              what the client brings and cannot load
    # alias = "vllm"                        the name by which it asks for its own metadata
    # ///
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKS = Path(__file__).parent / "checks"
_SUFFIXES = {".py": "#", ".mjs": "//"}


@dataclass(frozen=True, kw_only=True)
class ClientCheck:
    """What a check file says of itself."""

    path: Path
    packages: tuple[str, ...]
    removed: tuple[str, ...]
    alias: str | None
    serve_options: tuple[str, ...]

    @property
    def name(self) -> str:
        """As it is typed: checks/check_ai_sdk.mjs is ai-sdk."""
        return self.path.stem.removeprefix("check_").replace("_", "-")

    @property
    def is_python(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def versions(self) -> str:
        """The pins, as people read them: openai 3.57.0."""
        return ", ".join(" ".join(split_pin(package)) for package in self.packages)

    @classmethod
    def read(cls, path: Path) -> ClientCheck:
        """Raises ValueError if the header is missing or says something unknown."""
        header = _header(path)
        own: dict[str, Any] = header.pop("tool", {}).get("client", {})
        packages = tuple(header.pop("dependencies", ()))
        check = cls(
            path=path,
            packages=packages,
            removed=tuple(own.pop("remove", ())),
            alias=own.pop("alias", None),
            serve_options=tuple(own.pop("serve", ())),
        )
        if header or own or not packages:
            raise ValueError(f"{path.name}: its header lacks dependencies, or has too much")
        for package in packages:
            split_pin(package)
        return check


def all_checks() -> dict[str, ClientCheck]:
    """Every check by its name."""
    files = sorted(path for path in CHECKS.glob("check_*") if path.suffix in _SUFFIXES)
    checks = [ClientCheck.read(path) for path in files]
    return {check.name: check for check in checks}


def split_pin(package: str) -> tuple[str, str]:
    """("openai", "3.57.0") of openai==3.57.0, or of openai@7.59.0.  Raises ValueError."""
    found = re.fullmatch(r"(@?[\w./-]+)(?:\[[\w,-]+\])?(?:==|@)([\w.]+)", package)
    if found is None:
        raise ValueError(f"{package} is not pinned to one version")
    return found[1], found[2]


def _header(path: Path) -> dict[str, Any]:
    mark = re.escape(_SUFFIXES[path.suffix])
    text = path.read_text(encoding="utf-8")
    block = re.search(rf"^{mark} /// script\n((?:{mark}.*\n)+?){mark} ///$", text, re.MULTILINE)
    if block is None:
        raise ValueError(f"{path.name} has no header")
    return tomllib.loads(re.sub(rf"^{mark} ?", "", block[1], flags=re.MULTILINE))
