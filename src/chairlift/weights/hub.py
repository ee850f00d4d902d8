"""Fetches models from the Hugging Face hub into the hub client's own, resumable cache.

Chooses which files of a repository make up one model, and turns the client's many errors into one
line each.  `huggingface_hub` is imported when the first hub model is asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from chairlift.errors import ModelSourceError
from chairlift.weights.checkpoint import POOLING_FILE
from chairlift.weights.gguf import part_of_set
from chairlift.weights.safetensors import INDEX_FILE, SINGLE_FILE

_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(\S+))?", re.ASCII)
_LABEL = re.compile(
    r"(?<![A-Za-z0-9])((?:I?Q|TQ)\d[A-Za-z0-9_]*|BF16|F16|F32|FP16|FP32)(?![a-z0-9_])", re.I
)
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")

_LISTING_TIMEOUT_S = 15.0

_PREFERRED_LABELS = (
    "Q4_K_M",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q4_K_S",
    "Q4_1",
    "Q4_0",
    "BF16",
    "F16",
    "F32",
)
_CHECKPOINT_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        POOLING_FILE,
        SINGLE_FILE,
        INDEX_FILE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A parsed `org/name` or `org/name:label`."""

    repository: str
    label: str | None
    """A quantisation label such as Q4_K_M, or a file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The files that make up one model."""

    files: tuple[str, ...]
    gguf: str | None
    """The GGUF file to open (of a split set, its first part); None for a safetensors checkpoint."""


def parse_hub_name(name: str) -> HubName | None:
    """`name` as a hub name; None when it does not look like one."""
    match = _REPOSITORY.fullmatch(name)
    if match is None or ".." in match[1] or "--" in match[1]:
        return None
    return HubName(repository=match[1], label=match[2])


def select_files(name: HubName, files: list[str]) -> Selection:
    """Which of a repository's `files` are the model that `name` asks for.

    Raises ModelSourceError that lists the choices when the name fits none or several.
    """
    models = _gguf_models(files)
    if name.label is not None:
        return _select_labelled(name, models)
    names = set(files)
    if "config.json" in names and (SINGLE_FILE in names or INDEX_FILE in names):
        wanted = [file for file in files if file in _CHECKPOINT_FILES or _SHARD.fullmatch(file)]
        return Selection(files=tuple(wanted), gguf=None)
    if len(models) == 1:
        return _gguf_selection(next(iter(models.values())))
    for label in _PREFERRED_LABELS:
        matching = [parts for stem, parts in models.items() if _label(stem) == label]
        if len(matching) == 1:
            return _gguf_selection(matching[0])
    if models:
        raise ModelSourceError(
            f"{name.repository} holds several models: name one as {name.repository}:LABEL with "
            f"LABEL one of {_choices(models)}"
        )
    if any(file.endswith((".bin", ".pt", ".pth")) for file in files):
        raise ModelSourceError(
            f"{name.repository} holds only pickle weights; pickle files are not loaded, choose a "
            "repository with GGUF or safetensors files"
        )
    raise ModelSourceError(f"{name.repository} holds neither GGUF nor safetensors weights")


def fetch_from_hub(name: HubName, *, progress: bool) -> Path:
    """The local path of the model `name`: a GGUF file, or the folder of a checkpoint.

    Without a connection, what the hub client's cache holds is used.  Raises ModelSourceError in
    one line: not found, gated, offline, no room, or the name fits no single model.
    """
    import huggingface_hub

    with _hub_errors(name.repository), _hub_progress(name.repository, progress):
        try:
            # Unlike a plain listing this does not retry for half a minute without a network.
            info = huggingface_hub.model_info(name.repository, timeout=_LISTING_TIMEOUT_S)
        except Exception as error:
            if not _is_unreachable(error):
                raise
            return _from_hub_cache(name, error)
        selection = select_files(name, [file.rfilename for file in info.siblings or []])
        folder = Path(
            huggingface_hub.snapshot_download(
                name.repository,
                allow_patterns=[_escape_pattern(file) for file in selection.files],
            )
        )
    missing = [file for file in selection.files if not (folder / file).is_file()]
    if missing:
        raise ModelSourceError(
            f"{name.repository}: the download is incomplete, {missing[0]} is missing; run it again"
        )
    return folder / selection.gguf if selection.gguf else folder


def _from_hub_cache(name: HubName, cause: Exception) -> Path:
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(name.repository, local_files_only=True))
    except Exception as error:
        # We never take all files of a repository, which the client calls incomplete.
        partial = getattr(error, "snapshot_path", None)
        if not isinstance(partial, str):
            raise cause from None
        folder = Path(partial)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    try:
        selection = select_files(name, files)
    except ModelSourceError as error:
        raise ModelSourceError(
            f"the hub cannot be reached, and in its local cache {error}"
        ) from None
    return folder / selection.gguf if selection.gguf else folder


def _gguf_models(files: list[str]) -> dict[str, list[str]]:
    """The complete GGUF models among `files`: path without suffix and part number -> its files."""
    models: dict[str, list[str]] = {}
    num_parts: dict[str, int] = {}
    for file in sorted(files):
        path = PurePosixPath(file)
        if path.suffix.lower() != ".gguf" or path.name.lower().startswith("mmproj"):
            continue
        part = part_of_set(path.name)
        stem = str(path.with_name(path.name[:-5] if part is None else part[0]))
        models.setdefault(stem, []).append(file)
        num_parts[stem] = 1 if part is None else part[2]
    return {stem: parts for stem, parts in models.items() if len(parts) == num_parts[stem]}


def _select_labelled(name: HubName, models: dict[str, list[str]]) -> Selection:
    assert name.label is not None
    wanted = name.label.lower()
    if wanted.endswith(".gguf"):
        found = [
            parts
            for parts in models.values()
            if any(wanted in (file.lower(), PurePosixPath(file).name.lower()) for file in parts)
        ]
    else:
        found = [parts for stem, parts in models.items() if (_label(stem) or "").lower() == wanted]
    if len(found) == 1:
        return _gguf_selection(found[0])
    if found:
        listed = ", ".join(PurePosixPath(parts[0]).name for parts in found)
        raise ModelSourceError(
            f"{name.repository}:{name.label} fits several files; name one: {listed}"
        )
    if not models:
        raise ModelSourceError(f"{name.repository} holds no GGUF files, so leave out :{name.label}")
    raise ModelSourceError(
        f"{name.repository} has no {name.label}; choose one of {_choices(models)}"
    )


def _gguf_selection(parts: list[str]) -> Selection:
    return Selection(files=tuple(parts), gguf=parts[0])


def _label(stem: str) -> str | None:
    """The quantisation label in a file's path, upper case; the last one where there are several."""
    found = _LABEL.findall(stem)
    return found[-1].upper() if found else None


def _choices(models: dict[str, list[str]]) -> str:
    labels = {_label(stem) or PurePosixPath(parts[0]).name for stem, parts in models.items()}
    return ", ".join(sorted(labels))


def _escape_pattern(file: str) -> str:
    """`file` as a pattern that fits nothing else."""
    return re.sub(r"([*?[])", r"[\1]", file)


@contextmanager
def _hub_progress(repository: str, progress: bool) -> Iterator[None]:
    """Show the client's bars only to somebody who looks at them; else say one line, or nothing."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    show_bars = progress and sys.stderr.isatty()
    if progress and not show_bars:
        print(f"Fetching {repository} ...", file=sys.stderr, flush=True)
    if show_bars or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except ModelSourceError:
        raise
    except errors.GatedRepoError:
        message = f"{repository} is gated: accept its licence on its page and set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        message = (
            f"{repository} was not found on the hub; check the spelling, and set HF_TOKEN if it "
            "is private"
        )
    except errors.HFValidationError:
        message = f"{repository} is not a valid repository name"
    # The client lets the errors of whatever network library it uses through.
    except Exception as error:
        if _is_unreachable(error):
            message = (
                f"{repository}: the hub cannot be reached and the model is not in the local cache; "
                "check the network, or name a local file"
            )
        else:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            message = f"{repository}: the download failed: {reason}"
    else:
        return
    raise ModelSourceError(message) from None


def _is_unreachable(error: BaseException) -> bool:
    """Whether `error` says that there is no connection, rather than that the hub said no."""
    from huggingface_hub import errors

    if isinstance(error, (errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)):
        return True
    # httpx and requests name these errors alike and share no base class but Exception.
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "Timeout", "ConnectTimeout"})
