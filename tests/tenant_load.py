"""Tenants that always have a number of requests open, and what each of them gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.fair_share import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST
from fake_executor import Rig, make_request

SIZE = (20, 16)
"""Prompt and output tokens of a request, where none is given."""


def jain_index(values: Sequence[float]) -> float:
    """1 if all are the same, 1/n if one has all (Jain et al. 1984)."""
    return sum(values) ** 2 / len(values) / sum(value * value for value in values)


def run_tenants(
    weights: Mapping[str, int] | None,
    open_requests: Mapping[str, int],
    *,
    num_steps: int,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    **options: Any,
) -> tuple[Counter[str], Counter[str]]:
    """Tokens served to each tenant, weighed, and the longest wait of its requests in steps."""
    rig = Rig(
        **{
            "num_blocks": 400,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "enable_prefix_caching": False,
            "shares": weights,
            **options,
        }
    )
    served: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    num_open: Counter[str] = Counter()
    arrivals: dict[str, int] = {}
    num_made = 0
    for step in range(num_steps):
        for tenant, limit in open_requests.items():
            prompt, output = (sizes or {}).get(tenant, SIZE)
            while num_open[tenant] < limit:
                num_made += 1
                num_open[tenant] += 1
                name = f"{tenant}/{num_made}"
                arrivals[name] = step
                rig.core.add_request(make_request(name, prompt, output, tenant=tenant))
        num_before = len(rig.records)
        for update in rig.core.step():
            tenant = update.request_id.partition("/")[0]
            served[tenant] += OUTPUT_TOKEN_COST * len(update.new_token_ids)
            num_open[tenant] -= update.is_released
        for record in rig.records[num_before:]:
            for name in record.admitted:
                tenant = name.partition("/")[0]
                if name in arrivals:
                    served[tenant] += PROMPT_TOKEN_COST * (sizes or {}).get(tenant, SIZE)[0]
                    waits[tenant] = max(waits[tenant], step - arrivals.pop(name))
        if idle_s := rig.core.idle_s():
            rig.clock.advance(idle_s + 1e-9)
    rig.scheduler.check_integrity()
    return served, waits
