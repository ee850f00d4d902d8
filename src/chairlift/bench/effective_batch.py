"""The effective batch of a run: how many requests a step served, its time taken into account.

The throughput model says: throughput = effective batch / time per step.  If one policy is faster
than another on the same kernels only because its steps serve more requests, then the ratio of their
throughputs is the ratio of their effective batches.  From the records of steps i of t_i seconds:

```
                  sum_i (seats * p_i  +  riders_i * d_i)
effective batch = --------------------------------------        t_i = p_i + d_i
                               sum_i t_i
```

* d_i is the part of the step that decodes; it serves the riders that decode in it.  Padding is
  nobody, and neither is an empty seat.
* p_i is the part that computes prompts.  That work is the same under every policy and no seat could
  do better meanwhile, so it counts as a full batch.  Counting a step's members instead would charge
  static batching for seats that are not taken yet while its batch forms.

Steps are weighted by time because they differ: counted one by one, a step of 512 prompt tokens
would weigh as much as one that decodes for the last rider.  A step's prompt part is taken from the
step-time model, fitted on the records themselves.
"""

from __future__ import annotations

from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.throughput_model import StepTimeModel, query_key_pairs
from chairlift.events import StepRecord


def effective_batch(run: PolicyRun, step_time: StepTimeModel) -> float:
    """Of a run, by the formula above."""
    served = 0.0
    for record in run.records:
        prefill_s = prefill_share(record, step_time) * record.duration_s
        decode_s = record.duration_s - prefill_s
        riders = sum(member.kind == "decode" for member in record.members)
        served += run.num_seats * prefill_s + riders * decode_s
    return served / sum(record.duration_s for record in run.records)


def prefill_share(record: StepRecord, step_time: StepTimeModel) -> float:
    """Of a step's time, the part that its prompt tokens take: 1 if nobody decodes."""
    prompts = [member for member in record.members if member.kind == "prefill"]
    others = [member for member in record.members if member.kind != "prefill"]
    if not prompts or not others:
        return float(bool(prompts))
    pairs = sum(query_key_pairs(m.num_computed_tokens, m.num_new_tokens) for m in prompts)
    num_other_tokens = sum(member.num_new_tokens for member in others)
    num_decode_rows = min(record.num_sampled_tokens, record.num_decode_tokens)
    whole = step_time.step_s(
        num_other_tokens + record.num_prefill_tokens,
        record.attention_pairs,
        record.num_sampled_tokens,
    )
    without = step_time.step_s(num_other_tokens, record.attention_pairs - pairs, num_decode_rows)
    return 1 - without / whole if whole > 0 else 0.0
