"""Chairlift on one workload: python run_chairlift.py MODEL.gguf WORKLOAD [option=value ...]"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from workload import MAX_MODEL_LEN, MAX_SEQS, Job, jobs_of, num_threads, report, warm_up_of

import chairlift
from chairlift import LLM, SamplingParams


def main() -> None:
    model, workload, *given = sys.argv[1:]
    options: dict[str, object] = dict(option.split("=", 1) for option in given)
    for name in ("max_num_batched_tokens", "max_num_seqs", "preallocate_kv_cache"):
        if name in options:
            options[name] = json.loads(str(options[name]))
    llm = LLM(
        model=model,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=False,
        threads=num_threads(),
        **{"max_num_seqs": MAX_SEQS, **options},
    )

    def run(jobs: list[Job]) -> int:
        outputs = llm.generate(
            [{"prompt_token_ids": job.prompt} for job in jobs],
            [
                SamplingParams(temperature=0.0, max_tokens=job.num_tokens, ignore_eos=True)
                for job in jobs
            ],
            use_tqdm=False,
        )
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    jobs = jobs_of(workload)
    run(warm_up_of(jobs))
    start = time.perf_counter()
    produced = run(jobs)
    seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    settings = " ".join([chairlift.__version__, *given, f"(peak memory {peak_mb:.0f} MB)"])
    report("chairlift", settings, jobs, seconds, produced)


main()
