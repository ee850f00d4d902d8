"""How many multiply-adds a model needs for tokens, counted from its sizes alone.

```
layers     a token through all matrices of all layers
head       a row of logits
attention  a query-key pair: head size x query heads x layers, once for scores, once for values
```
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chairlift.events import StepRecord
from chairlift.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class MacCount:
    """Multiply-adds: `linear` of matrices with tokens, `attention` of queries with the cache."""

    linear: int
    attention: int

    def __add__(self, other: MacCount) -> MacCount:
        return MacCount(self.linear + other.linear, self.attention + other.attention)

    @property
    def total(self) -> int:
        return self.linear + self.attention


@dataclass(frozen=True, slots=True, kw_only=True)
class MacRates:
    """Multiply-adds per token, per row of logits and per query-key pair."""

    layers_per_token: int
    head_per_row: int
    attention_per_pair: int

    @classmethod
    def of(cls, config: ModelConfig) -> MacRates:
        head = config.vocab_size * config.hidden_size
        return cls(
            layers_per_token=config.num_parameters - head,
            head_per_row=head,
            attention_per_pair=2 * config.num_layers * config.num_heads * config.head_dim,
        )

    def count(self, *, num_tokens: int, num_rows: int, num_pairs: int) -> MacCount:
        """For tokens through all layers, rows of logits, and query-key pairs."""
        return MacCount(
            self.layers_per_token * num_tokens + self.head_per_row * num_rows,
            self.attention_per_pair * num_pairs,
        )

    def of_request(self, num_prompt_tokens: int, num_output_tokens: int) -> MacCount:
        """What one request needs, alone or in company: nobody computes the last token's keys.

        Without a prefix to share, and with attention to the whole context.
        """
        num_tokens = num_prompt_tokens + num_output_tokens - 1
        return self.count(
            num_tokens=num_tokens,
            num_rows=num_output_tokens,
            num_pairs=num_tokens * (num_tokens + 1) // 2,
        )

    def of_steps(self, records: Iterable[StepRecord]) -> MacCount:
        """What steps computed, padding and what was computed twice included."""
        total = MacCount(0, 0)
        for record in records:
            total += self.count(
                num_tokens=sum(member.num_new_tokens for member in record.members),
                num_rows=record.num_sampled_tokens,
                num_pairs=record.attention_pairs,
            )
        return total
