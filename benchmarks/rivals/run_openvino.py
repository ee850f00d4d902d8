"""OpenVINO GenAI on one workload: python run_openvino.py FOLDER WORKLOAD PRECISION GROUP

FOLDER holds the exported model.  Its fastest form on a processor without matrix units: weights of
8 bits, float32 activations quantised on the fly in groups.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import openvino
import openvino_genai
from workload import Job, jobs_of, num_threads, report, warm_up_of


def scheduler() -> openvino_genai.SchedulerConfig:
    config = openvino_genai.SchedulerConfig()
    config.max_num_seqs = 256
    config.max_num_batched_tokens = 512
    config.cache_size = 4
    config.dynamic_split_fuse = True
    config.enable_prefix_caching = False
    return config


def greedy(num_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True
    config.min_new_tokens = config.max_new_tokens = num_tokens
    return config


def main() -> None:
    folder, workload, precision, group = sys.argv[1:]
    properties: dict[str, object] = {
        "INFERENCE_NUM_THREADS": num_threads(),
        "INFERENCE_PRECISION_HINT": precision,
    }
    if precision == "f32":
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = int(group)
    pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler(), "CPU", properties)

    def run(jobs: list[Job]) -> tuple[float, int]:
        prompts = [openvino.Tensor(np.array([job.prompt], dtype=np.int64)) for job in jobs]
        configs = [greedy(job.num_tokens) for job in jobs]
        start = time.perf_counter()
        results = pipeline.generate(prompts, configs)
        seconds = time.perf_counter() - start
        return seconds, sum(len(result.m_generation_ids[0]) for result in results)

    jobs = jobs_of(workload)
    run(warm_up_of(jobs))
    seconds, produced = run(jobs)
    version = openvino.__version__.split("-")[0]
    kind = Path(folder).name.removeprefix("openvino-")
    settings = f"{version} {kind} weights, {precision} activations, dynamic group {group}"
    report("openvino", settings, jobs, seconds, produced)


main()
