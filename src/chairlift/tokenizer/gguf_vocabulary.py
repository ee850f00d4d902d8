"""Builds a tokenizer from the vocabulary that a GGUF file carries in its metadata.

Two kinds: "gpt2", byte-level BPE with the file's own merges, and "llama", SentencePiece BPE, whose
merges are recovered from the scores of the pieces.  Does not read files: it is handed the
metadata, with arrays as lists or as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from chairlift.errors import ModelFileError
from chairlift.tokenizer.end_tokens import find_end_tokens
from chairlift.tokenizer.pre_tokenizers import PreTokenizer, find_pre_tokenizer
from chairlift.tokenizer.tokenizer_spec import TokenizerSpec
from chairlift.tokenizer.vocabulary import SPACE_MARK, ByteScheme, Vocabulary

_PREFIX = "tokenizer.ggml."
# The special tokens of this family swallow the white space that follows them; the format has no
# field for it, so the model's name tells.
_STRIPS_RIGHT = ("phi-3", "phi3")


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def load_gguf_vocabulary(metadata: Mapping[str, Any], eos_ids: Iterable[int]) -> TokenizerSpec:
    """Everything a Tokenizer needs, from GGUF metadata.  `eos_ids` are further end tokens.

    Raises ModelFileError if the vocabulary is of a kind that is not supported, or inconsistent.
    """
    kind = _kind(metadata)
    texts = _texts(metadata, "tokens")
    types = _types(metadata, len(texts))
    if kind == "llama":
        _restore_spaces(texts, types)
    ids = _Ids(metadata, len(texts), kind, eos_ids)
    added = {
        text: token_id
        for token_id, (text, token_type) in enumerate(zip(texts, types, strict=True))
        if token_type in (TokenType.CONTROL, TokenType.USER_DEFINED) and text
    }
    ends = ids.ends | find_end_tokens(added)
    special_ids = ids.special | ends | _of_type(types, TokenType.CONTROL, TokenType.UNKNOWN)
    added_ids = special_ids | _of_type(types, TokenType.USER_DEFINED)
    add_space_prefix = kind == "llama" and bool(metadata.get(_PREFIX + "add_space_prefix", True))
    if kind == "llama":
        backend = _sentencepiece_backend(metadata, texts, types, ids.unknown, add_space_prefix)
        add_bos = True
    else:
        pre_tokenizer = find_pre_tokenizer(str(metadata.get(_PREFIX + "pre") or "default"))
        backend = _byte_level_backend(metadata, texts, pre_tokenizer)
        add_bos = pre_tokenizer.add_bos
    _add_tokens(backend, texts, added_ids, special_ids, _strips_right(metadata))
    return TokenizerSpec(
        backend=backend,
        vocabulary=Vocabulary(
            texts,
            scheme=ByteScheme.SENTENCEPIECE if kind == "llama" else ByteScheme.BYTE_LEVEL,
            added_ids=added_ids,
            special_ids=special_ids,
            strip_leading_space=add_space_prefix,
        ),
        bos_id=ids.bos,
        eos_id=ids.eos,
        eos_ids=ends,
        add_bos=bool(metadata.get(_PREFIX + "add_bos_token", add_bos)),
        add_eos=bool(metadata.get(_PREFIX + "add_eos_token", False)),
        chat_template=_chat_template(metadata),
    )


class _Ids:
    """The token ids that the metadata names, checked against the vocabulary's size."""

    def __init__(
        self, metadata: Mapping[str, Any], num_tokens: int, kind: str, eos_ids: Iterable[int]
    ) -> None:
        self._metadata = metadata
        self._num_tokens = num_tokens
        sentencepiece = kind == "llama"
        self.unknown = self._read("unknown", 0 if sentencepiece else None)
        self.bos = self._read("bos", 1 if sentencepiece else None)
        self.eos = self._read("eos", 2 if sentencepiece else None)
        named = (self.eos, self._read("eot"), self._read("eom"))
        self.ends = frozenset(i for i in named if i is not None) | frozenset(
            int(token_id) for token_id in eos_ids
        )
        self.special = frozenset(i for i in (self.bos, self.eos) if i is not None)

    def _read(self, name: str, default: int | None = None) -> int | None:
        key = f"{_PREFIX}{name}_token_id"
        if key not in self._metadata:
            return default if default is not None and default < self._num_tokens else None
        token_id = int(self._metadata[key])
        if 0 <= token_id < self._num_tokens:
            return token_id
        raise ModelFileError(
            f"{key} is {token_id}, but the vocabulary has {self._num_tokens} tokens; the file is"
            " damaged, download it again"
        )


def _kind(metadata: Mapping[str, Any]) -> Literal["gpt2", "llama"]:
    kind = metadata.get(_PREFIX + "model")
    if kind == "gpt2":
        return "gpt2"
    if kind == "llama":
        return "llama"
    if kind is None:
        raise ModelFileError(
            "the model file has no tokenizer.ggml.model; use a file that carries its vocabulary"
        )
    raise ModelFileError(
        f"tokenizer.ggml.model is {kind!r}, which is not supported; use a model whose tokenizer is"
        " 'gpt2' (byte-level BPE) or 'llama' (SentencePiece BPE)"
    )


def _array(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise ModelFileError(
            f"the model file has no {_PREFIX}{name}; use a file that carries its vocabulary"
        )
    # numpy arrays become Python numbers here; a list is copied because it may be changed below.
    return list(value.tolist() if hasattr(value, "tolist") else value)


def _texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    texts = _array(metadata, name)
    if texts and all(isinstance(text, str) for text in texts):
        return texts
    raise ModelFileError(
        f"{_PREFIX}{name} must be a list of strings; the file is damaged, download it again"
    )


def _types(metadata: Mapping[str, Any], num_tokens: int) -> list[int]:
    if metadata.get(_PREFIX + "token_type") is None:
        return [TokenType.NORMAL] * num_tokens
    return _same_length("token_type", _array(metadata, "token_type"), num_tokens)


def _same_length(name: str, values: list[Any], num_tokens: int) -> list[Any]:
    if len(values) == num_tokens:
        return values
    raise ModelFileError(
        f"{_PREFIX}{name} has {len(values)} entries for {num_tokens} tokens; the file is damaged,"
        " download it again"
    )


def _of_type(types: Sequence[int], *wanted: TokenType) -> frozenset[int]:
    return frozenset(token_id for token_id, kind in enumerate(types) if kind in wanted)


def _restore_spaces(texts: list[str], types: Sequence[int]) -> None:
    """User-defined pieces are matched in raw text, so their spaces must be spaces."""
    for token_id in _of_type(types, TokenType.USER_DEFINED):
        texts[token_id] = texts[token_id].replace(SPACE_MARK, " ")


def _ids_by_text(texts: Sequence[str]) -> dict[str, int]:
    """The first id of each text.  Empty and repeated pieces can be decoded, never encoded."""
    ids: dict[str, int] = {}
    for token_id, text in enumerate(texts):
        if text:
            ids.setdefault(text, token_id)
    return ids


def _byte_level_backend(
    metadata: Mapping[str, Any], texts: Sequence[str], pre_tokenizer: PreTokenizer
) -> tokenizers.Tokenizer:
    ids = _ids_by_text(texts)
    merges = [_split_merge(merge, ids) for merge in _texts(metadata, "merges")]
    # Built from Python objects: twice as fast as through a JSON text.
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, ignore_merges=pre_tokenizer.ignore_merges)
    )
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer.patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


def _split_merge(merge: str, ids: Mapping[str, int]) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if space and left in ids and right in ids and left + right in ids:
        return left, right
    raise ModelFileError(
        f"tokenizer.ggml.merges holds {merge!r}, whose parts or whole are not in the vocabulary;"
        " the file is damaged, download it again"
    )


def _sentencepiece_backend(
    metadata: Mapping[str, Any],
    texts: Sequence[str],
    types: Sequence[int],
    unknown_id: int | None,
    add_space_prefix: bool,
) -> tokenizers.Tokenizer:
    scores = _same_length("scores", _array(metadata, "scores"), len(texts))
    ids = _ids_by_text(texts)
    normal = {
        text: scores[token_id]
        for text, token_id in ids.items()
        if types[token_id] in (TokenType.NORMAL, TokenType.UNDEFINED)
    }
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_by_score(normal),
            unk_token=None if unknown_id is None else texts[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if add_space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _merges_by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that together are a piece, best score first.

    SentencePiece joins, again and again, the neighbours whose joint piece has the best score, the
    leftmost of equals.  Ranking pairs by score gives the same, but for pieces of equal score:
    there the earlier piece comes first.  The sort is stable, so the order is always the same.
    """
    ranked: list[tuple[float, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                ranked.append((score, left, right))
    ranked.sort(key=lambda merge: merge[0], reverse=True)
    return [(left, right) for _, left, right in ranked]


def _add_tokens(
    backend: tokenizers.Tokenizer,
    texts: Sequence[str],
    added_ids: frozenset[int],
    special_ids: frozenset[int],
    strips_right: bool,
) -> None:
    special = [
        AddedToken(texts[i], normalized=False, special=True, rstrip=strips_right)
        for i in sorted(special_ids)
        if i < len(texts) and texts[i]
    ]
    plain = [AddedToken(texts[i], normalized=False) for i in sorted(added_ids - special_ids)]
    backend.add_special_tokens(special)
    backend.add_tokens([token for token in plain if token.content])


def _strips_right(metadata: Mapping[str, Any]) -> bool:
    name = str(metadata.get("general.name", "")).lower()
    return any(part in name for part in _STRIPS_RIGHT)


def _chat_template(metadata: Mapping[str, Any]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None
