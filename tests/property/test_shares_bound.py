"""Fair shares hold for any tenants: whoever always has work is served by weight, within a bound.

The bound is that of the paper on virtual token counters: twice the larger of what a prompt costs
and what all tokens of a full batch cost, per unit of weight.  It does not grow with time.
`CHAIRLIFT_FULL=1` runs twenty times as many examples.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.core.fair_share import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST
from tenant_load import run_tenants

IS_FULL = os.environ.get("CHAIRLIFT_FULL") == "1"
TENANT = st.tuples(
    st.integers(1, 5),  # weight
    st.integers(0, 12),  # open requests beyond one for each seat
    st.integers(1, 24),  # prompt tokens
    st.integers(1, 20),  # output tokens
)
NUM_STEPS = 400


@settings(
    max_examples=400 if IS_FULL else 20,
    deadline=None,
    derandomize=not IS_FULL,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    tenants=st.lists(TENANT, min_size=2, max_size=4),
    max_num_seqs=st.integers(1, 6),
    num_blocks=st.integers(12, 60),
    spare_budget=st.integers(0, 30),
    options=st.fixed_dictionaries(
        {
            "batching_policy": st.sampled_from(["continuous", "continuous", "dynamic"]),
            "prefill_policy": st.sampled_from(["chunked", "separated"]),
            "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
            "preemption_mode": st.sampled_from(["auto", "recompute", "swap"]),
            "num_swap_blocks": st.sampled_from([0, 20]),
            "overlap_depth": st.integers(0, 1),
        }
    ),
)
def test_served_tokens_per_weight_differ_by_a_bound(
    tenants: list[tuple[int, int, int, int]],
    max_num_seqs: int,
    num_blocks: int,
    spare_budget: int,
    options: dict[str, Any],
) -> None:
    names = [f"t{index}" for index in range(len(tenants))]
    weights = {name: tenant[0] for name, tenant in zip(names, tenants, strict=True)}
    sizes = {name: tenant[2:] for name, tenant in zip(names, tenants, strict=True)}
    served, _ = run_tenants(
        weights,
        {name: max_num_seqs + 1 + tenant[1] for name, tenant in zip(names, tenants, strict=True)},
        num_steps=NUM_STEPS,
        sizes=sizes,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + spare_budget,
        batch_wait_ms=0.0,
        **options,
    )
    longest_prompt = max(prompt for prompt, _ in sizes.values())
    longest = max(prompt + output for prompt, output in sizes.values())
    bound = 2 * max(PROMPT_TOKEN_COST * longest_prompt, OUTPUT_TOKEN_COST * max_num_seqs * longest)
    shares = [served[name] / weights[name] for name in names]
    assert min(served.values()) > 0
    assert max(shares) - min(shares) <= bound, (served, weights)
