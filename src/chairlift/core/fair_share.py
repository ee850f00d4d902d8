"""Fair shares of the engine between tenants: virtual token counters.

Each tenant has a counter of the tokens it was served, an output token counted as two of a prompt,
divided by the tenant's weight.  Whoever waits and has the smallest counter goes next, so that
tenants with work to do are served in proportion to their weights, and none is kept out by how much
another one asks for.  A tenant that comes back to the line after an absence is lifted to those
who wait: time without demand earns no credit.  (Sheng et al. 2024, Fairness in Serving Large
Language Models.)

Tokens count when they are computed: those of the prefix cache cost nothing, and what a preemption
makes necessary again is not charged to whom it hit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from chairlift.core.lazy_heap import LazyHeap

PROMPT_TOKEN_COST = 1
OUTPUT_TOKEN_COST = 2
MAX_WEIGHT = 10_000
_SCALE = 1 << 30
"""Counters are integers: cost * this / weight."""
_OUTPUT_COST = OUTPUT_TOKEN_COST * _SCALE


class FairShare:
    """The counters.  O(1) to charge, amortised O(log n) to lift; n tenants."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        """`weights`: shares relative to each other, 1 where none is given."""
        self._weights = dict(weights or {})
        for name, weight in self._weights.items():
            assert 1 <= weight <= MAX_WEIGHT, (name, weight)
        self._counters: defaultdict[str, int] = defaultdict(int)
        self._output_costs = {
            name: OUTPUT_TOKEN_COST * _SCALE // weight for name, weight in self._weights.items()
        }
        self._num_waiting: dict[str, int] = {}
        """Of tenants that have requests in line."""
        self._in_line = LazyHeap(self._num_waiting, self.counter)
        self._last_to_leave = ""

    def weight(self, tenant: str) -> int:
        return self._weights.get(tenant, 1)

    def counter(self, tenant: str) -> int:
        return self._counters[tenant]

    def charge_prompt(self, tenant: str, num_tokens: int) -> None:
        """Book prompt tokens that are computed for a tenant."""
        self._counters[tenant] += PROMPT_TOKEN_COST * num_tokens * _SCALE // self.weight(tenant)

    def charge_output(self, tenant: str) -> None:
        """Book a token that is generated for a tenant."""
        self._counters[tenant] += self._output_costs.get(tenant, _OUTPUT_COST)

    def joined(self, tenant: str) -> None:
        """A new request of the tenant stands in line."""
        num_waiting = self._num_waiting.get(tenant, 0)
        if not num_waiting:
            smallest = self._in_line.first()
            floor = self.counter(self._last_to_leave if smallest is None else smallest)
            self._counters[tenant] = max(self.counter(tenant), floor)
        self._num_waiting[tenant] = num_waiting + 1
        if not num_waiting:
            self._in_line.push(tenant)

    def left(self, tenant: str) -> None:
        """A new request of the tenant stands in line no more."""
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
            self._last_to_leave = tenant
