"""Builds a tokenizer from a Hugging Face folder.

Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and
`chat_template.jinja`; only the first one must be there.  Knows no other file of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from chairlift.errors import ModelFileError
from chairlift.tokenizer.end_tokens import find_end_tokens
from chairlift.tokenizer.tokenizer_spec import TokenizerSpec
from chairlift.tokenizer.vocabulary import ByteScheme, Vocabulary

_PROBE = "a"


def load_huggingface_folder(folder: Path, eos_ids: Iterable[int]) -> TokenizerSpec:
    """Everything a Tokenizer needs, from the files of `folder`.  `eos_ids` are further end tokens.

    Raises ModelFileError if `tokenizer.json` is missing, damaged or of an unsupported kind.
    """
    backend = _read_backend(folder / "tokenizer.json")
    config = _read_object(folder / "tokenizer_config.json")
    names = _read_object(folder / "special_tokens_map.json") | config
    added = backend.get_added_tokens_decoder()
    bos_id = _named_id(backend, names, "bos_token")
    eos_id = _named_id(backend, names, "eos_token")
    ends = (
        find_end_tokens({token.content: token_id for token_id, token in added.items()})
        | frozenset(int(token_id) for token_id in eos_ids)
        | _known(eos_id)
    )
    special_ids = frozenset(i for i, token in added.items() if token.special)
    special_ids |= ends | _known(bos_id)
    add_bos, add_eos = _template_adds(backend, bos_id, eos_id)
    scheme, strip_leading_space = _byte_scheme(backend)
    return TokenizerSpec(
        backend=backend,
        vocabulary=Vocabulary(
            _texts(backend),
            scheme=scheme,
            added_ids=frozenset(added) | special_ids,
            special_ids=special_ids,
            strip_leading_space=strip_leading_space,
        ),
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=ends,
        add_bos=_flag(config, "add_bos_token", add_bos),
        add_eos=_flag(config, "add_eos_token", add_eos),
        chat_template=_chat_template(folder, config),
    )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelFileError(f"{path} is missing; use a model folder with a tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises bare Exception for a file it cannot read.
        raise ModelFileError(f"{path} cannot be read: {_one_line(error)}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFileError(f"{path} is not valid JSON: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object; download it again")
    return value


def _named_id(backend: tokenizers.Tokenizer, names: Mapping[str, Any], name: str) -> int | None:
    token = names.get(name)
    if isinstance(token, Mapping):
        token = token.get("content")
    if not isinstance(token, str) or not token:
        return None
    token_id: int | None = backend.token_to_id(token)
    return token_id


def _known(token_id: int | None) -> frozenset[int]:
    return frozenset() if token_id is None else frozenset((token_id,))


def _texts(backend: tokenizers.Tokenizer) -> list[str]:
    ids = backend.get_vocab(with_added_tokens=True)
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, token_id in ids.items():
        texts[token_id] = text
    return texts


def _template_adds(
    backend: tokenizers.Tokenizer, bos_id: int | None, eos_id: int | None
) -> tuple[bool, bool]:
    """Whether the file's post-processor puts BOS before and EOS after a text."""
    ids = backend.encode(_PROBE, add_special_tokens=True).ids
    return bos_id is not None and ids[:1] == [bos_id], eos_id is not None and ids[-1:] == [eos_id]


def _flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    return value if isinstance(value, bool) else default


def _byte_scheme(backend: tokenizers.Tokenizer) -> tuple[ByteScheme, bool]:
    """How the pieces spell bytes, and whether decoding takes off a leading space."""
    steps = _decoder_steps(backend)
    types = {step["type"] for step in steps}
    if "ByteLevel" in types:
        return ByteScheme.BYTE_LEVEL, False
    if types & {"ByteFallback", "Metaspace"}:
        return ByteScheme.SENTENCEPIECE, any(map(_strips_space, steps))
    raise ModelFileError(
        f"tokenizer.json decodes with {', '.join(sorted(types)) or 'nothing'}, which is not"
        " supported; use a model with a byte-level BPE or SentencePiece tokenizer"
    )


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _strips_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme") != "never"
    return step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        # Several templates by name, for tools or retrieval; "default" is the one for chat.
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) and template else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
