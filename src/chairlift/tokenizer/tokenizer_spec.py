"""What the two readers, GGUF metadata and Hugging Face folders, hand to Tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers

from chairlift.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """The parts of a tokenizer, whatever file they came from."""

    backend: tokenizers.Tokenizer
    """Cuts text into ids.  Its post-processor is not used: BOS and EOS are added by Tokenizer."""
    vocabulary: Vocabulary
    bos_id: int | None
    eos_id: int | None
    """The file's own end token; `eos_ids` holds it too."""
    eos_ids: frozenset[int]
    """Every token that ends a completion."""
    add_bos: bool
    add_eos: bool
    chat_template: str | None
