"""What the engine says without a server: pairs of texts on standard input, scores on the output.

Of each pair [context, continuation] the sum of the continuation's log probabilities, and whether
each of its tokens was the most likely one.  An empty context is the token that starts a text.
"""

from __future__ import annotations

import json
import sys

from chairlift import LLM, SamplingParams


def main() -> None:
    llm = LLM()
    tokenizer = llm.get_tokenizer()
    pairs = json.load(sys.stdin)
    prompts, starts = [], []
    for context, continuation in pairs:
        kept = context.rstrip()
        before = tokenizer.encode(kept, add_special_tokens=False)
        whole = tokenizer.encode(context + continuation, add_special_tokens=False)
        if not context:
            before, whole = [tokenizer.bos_id], [tokenizer.bos_id, *whole]
        prompts.append(whole)
        starts.append(len(before))
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    scores = []
    for ids, start, output in zip(prompts, starts, llm.generate(prompts, params), strict=True):
        positions = output.prompt_logprobs[start:]
        chosen = [
            position[token_id] for token_id, position in zip(ids[start:], positions, strict=True)
        ]
        is_greedy = all(one.rank == 1 for one in chosen)
        scores.append([sum(one.logprob for one in chosen), is_greedy])
    json.dump(scores, sys.stdout)


main()
