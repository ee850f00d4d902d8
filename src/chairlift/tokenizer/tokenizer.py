"""Tokenizer: text to token ids and back, the same for GGUF and Hugging Face models.

Owns the rules that a user sees: BOS never twice, which tokens end a completion, which bytes a
token stands for.  Does not know the model; `check_vocab_size` compares the two.  Every method may
be called from several threads at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chairlift.errors import ModelFileError, RequestError
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    import tokenizers

    from chairlift.tokenizer.tokenizer_spec import TokenizerSpec


class Tokenizer:
    """Turns text into token ids and token ids into text."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._backend = spec.backend
        self._literal_backend: tokenizers.Tokenizer | None = None
        self._literal_lock = threading.Lock()
        self._vocabulary = spec.vocabulary
        self._special_texts: re.Pattern[str] | None = None
        self._ids_of_special_texts: dict[str, int] | None = None
        self.bos_id = spec.bos_id
        self.eos_id = spec.eos_id
        self.eos_ids = spec.eos_ids
        self.add_bos = spec.add_bos and spec.bos_id is not None
        self.add_eos = spec.add_eos and spec.eos_id is not None
        self.chat_template = spec.chat_template

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, eos_ids: Iterable[int] = ()) -> Tokenizer:
        """Builds the tokenizer from the metadata of a GGUF file.

        Arrays may be lists or numpy arrays.  `eos_ids` are end tokens besides the file's own.
        Raises ModelFileError if the vocabulary is missing, damaged or of an unsupported kind.
        """
        from chairlift.tokenizer.gguf_vocabulary import load_gguf_vocabulary

        return cls(load_gguf_vocabulary(metadata, eos_ids))

    @classmethod
    def from_huggingface(cls, folder: Path, *, eos_ids: Iterable[int] = ()) -> Tokenizer:
        """Builds the tokenizer from a folder with `tokenizer.json` and its companions.

        `eos_ids` are end tokens besides the folder's own, as generation_config.json names them.
        Raises ModelFileError if a file is missing, damaged or of an unsupported kind.
        """
        from chairlift.tokenizer.huggingface_folder import load_huggingface_folder

        return cls(load_huggingface_folder(folder, eos_ids))

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._vocabulary)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that steer the model and are not part of the text."""
        return self._vocabulary.special_ids

    @property
    def strips_leading_space(self) -> bool:
        """Whether `encode` puts a space in front of a text, which `decode` takes off again."""
        return self._vocabulary.strip_leading_space

    @cached_property
    def max_bytes_per_token(self) -> int | None:
        """No token stands for more of a text; None where texts are changed before they are cut."""
        if self._backend.normalizer is not None:
            return None
        return max(len(self._vocabulary.token_bytes(i)) for i in range(self.vocab_size))

    @property
    def bos_token(self) -> str:
        """Text of the BOS token; empty if there is none."""
        return "" if self.bos_id is None else self._vocabulary.piece(self.bos_id)

    @property
    def eos_token(self) -> str:
        """Text of the file's own end token; empty if there is none."""
        return "" if self.eos_id is None else self._vocabulary.piece(self.eos_id)

    def is_special(self, token_id: int) -> bool:
        """Whether the token steers the model and is not part of the text."""
        return token_id in self._vocabulary.special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token stands for; special tokens stand for their text.

        Empty for an id beyond the vocabulary, such as a padding row of the embedding.
        """
        return self._vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token as text by itself; bytes that are no whole character become U+FFFD."""
        return self._vocabulary.token_bytes(token_id).decode("utf-8", "replace")

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens`: BOS and EOS as the model wants them; a text that already begins with
        BOS, because a chat template wrote it, gets no second one.
        `parse_special`: whether the text of a special token means that token.  False for text from
        people who must not be able to write control tokens.
        Raises RequestError if the text holds half a surrogate pair, which no encoding can carry.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be str, not {type(text).__name__}")
        backend = self._backend if parse_special else self._literal()
        try:
            # A batch of one, for `encode` keeps all other Python threads waiting until it is done.
            encodings = backend.encode_batch_fast([text], add_special_tokens=False)
        except TypeError:
            raise RequestError(
                "the text holds half of a surrogate pair; send valid Unicode", field="prompt"
            ) from None
        ids: list[int] = encodings[0].ids
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        """The ids of a text with BOS and EOS as the model wants them, each once."""
        if self.add_bos and ids[:1] != [self.bos_id]:
            ids = [_present(self.bos_id), *ids]
        if self.add_eos and ids[-1:] != [self.eos_id]:
            ids = [*ids, _present(self.eos_id)]
        return ids

    def special_texts_pattern(self) -> re.Pattern[str]:
        """Matches whatever spells a control token; nothing where there are none."""
        if self._special_texts is None:
            texts = {self._vocabulary.piece(i) for i in self._vocabulary.special_ids} - {""}
            longest_first = sorted(texts, key=lambda text: (-len(text), text))
            self._special_texts = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        return self._special_texts

    def special_id(self, text: str) -> int | None:
        """The control token that is spelled so; None if there is none."""
        if self._ids_of_special_texts is None:
            ids = sorted(self._vocabulary.special_ids, reverse=True)
            self._ids_of_special_texts = {self._vocabulary.piece(id): id for id in ids}
        return self._ids_of_special_texts.get(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`.  Bytes that are no UTF-8 become U+FFFD."""
        detokenizer = IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def check_vocab_size(self, model_vocab_size: int) -> None:
        """Raises ModelFileError if a token has no row in an embedding of `model_vocab_size` rows.

        More rows than tokens is common (padding) and fine.
        """
        if self.vocab_size > model_vocab_size:
            raise ModelFileError(
                f"the tokenizer has {self.vocab_size} tokens but the model's embedding only"
                f" {model_vocab_size} rows; the tokenizer belongs to another model"
            )

    def _literal(self) -> tokenizers.Tokenizer:
        """A second backend that shares the model but takes special tokens for plain text."""
        with self._literal_lock:
            if self._literal_backend is None:
                self._literal_backend = _without_special_tokens(self._backend)
            return self._literal_backend


def _without_special_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    import tokenizers

    literal = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        literal.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        literal.pre_tokenizer = backend.pre_tokenizer
    added = backend.get_added_tokens_decoder().values()
    literal.add_tokens([token for token in added if not token.special])
    return literal


def _present(token_id: int | None) -> int:
    assert token_id is not None
    return token_id
