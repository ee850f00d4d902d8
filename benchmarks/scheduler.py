"""What the scheduler costs per step: 256 running requests, with 10 and with 10,000 waiting.

Run from a source tree: `PYTHONPATH=src python benchmarks/scheduler.py [--json] [--tenants N]`.
The real scheduler, KV cache manager and prefix cache run against a result that costs nothing; every
running request decodes at a context of about 600 tokens, blocks are filled and registered on the
way, and those that wait are kept out by `max_num_seqs`.  Tenants, if there are any, share fairly.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time

from chairlift.config import SchedulerConfig
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RunnerOutput, SampledToken

NUM_RUNNING = 256
NUM_PROMPT_TOKENS = 600
NUM_STEPS = 300
BLOCK_SIZE = 16
TARGET_MS = 2.0
TARGET_RATIO = 1.10


def build(num_waiting: int, num_tenants: int = 0) -> Scheduler:
    """A scheduler whose running requests have their prompts behind them."""
    num_blocks = NUM_RUNNING * (NUM_PROMPT_TOKENS + 2 * NUM_STEPS) // BLOCK_SIZE
    config = SchedulerConfig(max_num_seqs=NUM_RUNNING, max_num_batched_tokens=8192)
    scheduler = Scheduler(config, KVCacheManager(num_blocks, BLOCK_SIZE))
    if num_tenants:
        scheduler.share_fairly({})
    rng = random.Random(0)
    for index in range(NUM_RUNNING + num_waiting):
        scheduler.add_request(
            Request(
                request_id=f"request-{index}",
                prompt_token_ids=[rng.randrange(50_000) for _ in range(NUM_PROMPT_TOKENS)],
                max_tokens=2 * NUM_STEPS,
                tenant=f"tenant-{index % max(1, num_tenants)}",
            )
        )
    while sum(request.num_output_tokens > 0 for request in scheduler.running) < NUM_RUNNING:
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> float:
    """One round; returns the seconds spent in `schedule()` and `update()`."""
    start_s = time.perf_counter()
    output = scheduler.schedule(0.0)
    scheduled_s = time.perf_counter()
    token = SampledToken(token_id=output.step_id % 50_000)
    sampled = {item.request_id: token for item in output.scheduled if item.is_sampling}
    computed_s = time.perf_counter()
    scheduler.update(output, RunnerOutput(sampled=sampled))
    return scheduled_s - start_s + time.perf_counter() - computed_s


def median_ms(scheduler: Scheduler) -> float:
    gc.collect()
    return 1e3 * statistics.median(step(scheduler) for _ in range(NUM_STEPS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--tenants", type=int, default=0, help="tenants that share fairly")
    arguments = parser.parse_args()
    few = median_ms(build(10, arguments.tenants))
    many = median_ms(build(10_000, arguments.tenants))
    result = {
        "num_running": NUM_RUNNING,
        "num_prompt_tokens": NUM_PROMPT_TOKENS,
        "num_steps": NUM_STEPS,
        "num_tenants": arguments.tenants,
        "median_ms_10_waiting": round(few, 3),
        "median_ms_10000_waiting": round(many, 3),
        "ratio": round(many / few, 3),
        "meets_target": many < TARGET_MS and many / few < TARGET_RATIO,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{NUM_RUNNING} running,     10 waiting: {few:.3f} ms per step")
    print(f"{NUM_RUNNING} running, 10,000 waiting: {many:.3f} ms per step (target {TARGET_MS} ms)")
    print(f"ratio: {many / few:.3f} (target {TARGET_RATIO})")


if __name__ == "__main__":
    main()
