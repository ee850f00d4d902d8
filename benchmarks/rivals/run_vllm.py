"""vLLM's CPU build on one workload: python run_vllm.py FOLDER WORKLOAD DTYPE"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import vllm
from workload import MAX_MODEL_LEN, MAX_SEQS, Job, jobs_of, report, warm_up_of


def main() -> None:
    folder, workload, dtype = sys.argv[1:]
    llm = vllm.LLM(
        model=folder,
        dtype=dtype,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_SEQS,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def run(jobs: list[Job]) -> int:
        params = [
            vllm.SamplingParams(
                temperature=0.0, max_tokens=job.num_tokens, ignore_eos=True, detokenize=False
            )
            for job in jobs
        ]
        prompts = [{"prompt_token_ids": job.prompt} for job in jobs]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    jobs = jobs_of(workload)
    run(warm_up_of(jobs))
    start = time.perf_counter()
    produced = run(jobs)
    seconds = time.perf_counter() - start
    report("vllm", f"{vllm.__version__} {dtype}", jobs, seconds, produced)


if __name__ == "__main__":  # its workers import this file again
    main()
