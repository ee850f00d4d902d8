"""How many of an answer's tokens were thoughts."""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.engine.input_processor import ProcessedInput
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from chairlift.tokenizer.tokenizer import Tokenizer


class ReasoningCount:
    """Of one growing answer.  Each token is looked at once, as far as there are thoughts."""

    def __init__(self, tokenizer: Tokenizer, processed: ProcessedInput) -> None:
        params = processed.params
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            kept_special_token_ids=params.kept_special_token_ids,
            prompt_token_ids=processed.prompt_token_ids,
        )
        self._num_chars = 0
        self._num_tokens = 0

    def count(self, token_ids: Sequence[int], num_chars: int) -> int:
        """Tokens that make the first `num_chars` characters of the text of `token_ids`."""
        while self._num_chars < num_chars and self._num_tokens < len(token_ids):
            self._num_chars += len(self._detokenizer.push([token_ids[self._num_tokens]]))
            self._num_tokens += 1
        return self._num_tokens
