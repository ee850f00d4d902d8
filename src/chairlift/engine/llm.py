"""`LLM`: offline generation and embedding, with names and outputs of vLLM's class of that name."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.errors import RequestError
from chairlift.log import LOGGER_NAME, configure_logging
from chairlift.outputs import EmbeddingRequestOutput, RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(LOGGER_NAME)

Messages = Sequence[Mapping[str, Any]]
Params = TypeVar("Params", SamplingParams, PoolingParams)


class LLM:
    """A model to generate with.  Options are those of `EngineConfig`.

    ```
    llm = LLM("smollm2")
    outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0))
    print(outputs[0].outputs[0].text)
    ```
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        unknown = set(options) - set(EngineConfig.field_names())
        if unknown:
            raise TypeError(f"LLM has no option {sorted(unknown)[0]!r}")
        configure_logging()
        self.engine = Engine.from_config(
            EngineConfig(model=model, **options), show_download=sys.stderr.isatty()
        )
        self._newest: dict[str, RequestOutput | None] = {}
        """The newest output of every request under way that its caller has not seen."""

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults, with the model's own generation defaults where it has them."""
        return self.engine.model.defaults.sampling_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; outputs come in the order of the prompts.

        A prompt is a text, a list of token ids, or {"prompt": ...} / {"prompt_token_ids": [...]}.
        Raises `RequestError`, naming the field, before anything runs if an input is bad.
        """
        batch = _as_prompts(prompts)
        params = _as_params(sampling_params, len(batch), SamplingParams, "sampling_params")
        priorities = list(priority) if priority is not None else [0] * len(batch)
        if len(priorities) != len(batch):
            raise RequestError(
                f"priority has {len(priorities)} entries for {len(batch)} prompts",
                field="priority",
            )
        return self._run_all(
            [
                self.engine.process_input(prompt, one, priority=rank)
                for prompt, one, rank in zip(batch, params, priorities, strict=True)
            ],
            use_tqdm,
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt, of the model's final hidden states, in the order of prompts.

        ```
        (output,) = llm.embed("A lift that never stops", PoolingParams(pooling_type="mean"))
        vector = numpy.array(output.outputs.embedding)
        ```
        Prompts are given as to `generate`.  Raises `RequestError`, naming the field, before
        anything runs if an input is bad.
        """
        batch = _as_prompts(prompts)
        params = _as_params(pooling_params, len(batch), PoolingParams, "pooling_params")
        outputs = self._run_all(
            [
                self.engine.process_embedding(prompt, one)
                for prompt, one in zip(batch, params, strict=True)
            ],
            use_tqdm,
        )
        return [EmbeddingRequestOutput.of(output) for output in outputs]

    def _run_all(self, requests: Sequence[ProcessedInput], use_tqdm: bool) -> list[RequestOutput]:
        """Their finished outputs, in their order.  Leaving early aborts the rest."""
        finished: dict[str, RequestOutput] = {}
        try:
            for request in requests:
                self._add(request, is_streaming=False)
            finished = self._run(requests, use_tqdm)
        finally:
            for request in requests:
                self._leave(request, is_finished=request.request_id in finished)
        return [finished[request.request_id] for request in requests]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, written with the model's own chat template."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if is_one else messages
        prompts = [
            self.render_chat(conversation, add_generation_prompt=add_generation_prompt)
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def render_chat(self, messages: Messages, *, add_generation_prompt: bool = True) -> str:
        """A conversation as the text that the model gets to see."""
        template = self.engine.model.chat_template
        if template is None:
            raise RequestError(
                "the model has no chat template: use generate(), or a chat model",
                field="messages",
            )
        return template.render(messages, add_generation_prompt=add_generation_prompt)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Cumulative outputs of one prompt, as its tokens come.  Leaving early aborts it.

        Several streams may be read in turn, and `generate` called between: they share the steps.
        """
        request = self.engine.process_input(prompt, sampling_params)
        is_finished = False
        try:
            self._add(request, is_streaming=True)
            while not is_finished:
                output = self._take(request.request_id)
                if output is None:
                    self._step()
                else:
                    is_finished = output.finished
                    yield output
        finally:
            self._leave(request, is_finished=is_finished)

    def close(self) -> None:
        """Write out the step trace, if there is one."""
        self.engine.close()

    def _run(self, requests: Sequence[ProcessedInput], use_tqdm: bool) -> dict[str, RequestOutput]:
        """Step until all have finished."""
        ids = {request.request_id for request in requests}
        finished: dict[str, RequestOutput] = {}
        with _Progress(len(ids), is_shown=use_tqdm) as progress:
            while len(finished) < len(ids):
                for request_id in self._step() & ids:
                    output = self._take(request_id)
                    if output is not None and output.finished:
                        finished[request_id] = output
                        progress.add(output)
        logger.info("%s", self.engine.summary.take())
        return finished

    def _add(self, request: ProcessedInput, *, is_streaming: bool) -> None:
        self.engine.add(request, is_streaming=is_streaming)
        self._newest[request.request_id] = None

    def _step(self) -> set[str]:
        """One step for everybody; whose outputs came."""
        came = set()
        for output in self.engine.step():
            if output.request_id in self._newest:
                self._newest[output.request_id] = output
                came.add(output.request_id)
        return came

    def _take(self, request_id: str) -> RequestOutput | None:
        """The newest output of a request, once."""
        output, self._newest[request_id] = self._newest[request_id], None
        return output

    def _leave(self, request: ProcessedInput, *, is_finished: bool) -> None:
        """Nobody reads this request any more."""
        if request.request_id in self._newest:
            del self._newest[request.request_id]
            if not is_finished:
                self.engine.abort(request.request_id)


class _Progress:
    """A bar with tokens per second, on a terminal; nothing elsewhere."""

    def __init__(self, num_requests: int, *, is_shown: bool) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=num_requests,
            desc="Requests",
            unit="req",
            disable=not (is_shown and sys.stderr.isatty()),
            dynamic_ncols=True,
        )
        self._start_s = time.perf_counter()
        self._num_input = self._num_output = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def add(self, output: RequestOutput) -> None:
        self._num_input += len(output.prompt_token_ids)
        self._num_output += sum(len(item.token_ids) for item in output.outputs)
        elapsed_s = max(1e-9, time.perf_counter() - self._start_s)
        self._bar.set_postfix_str(
            f"in {self._num_input / elapsed_s:.0f} tok/s, out {self._num_output / elapsed_s:.0f}"
            " tok/s",
            refresh=False,
        )
        self._bar.update()


def _as_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or many, told apart as vLLM does: a list of integers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray)):
        raise RequestError(
            f"prompts must be a text, a mapping or a list, got {type(prompts).__name__}",
            field="prompts",
        )
    if prompts and all(isinstance(item, int) for item in prompts):
        return [list(prompts)]
    return list(prompts)


def _as_params(params: Any, count: int, kind: type[Params], field: str) -> list[Params | None]:
    if params is None or isinstance(params, kind):
        return [params] * count
    if isinstance(params, (str, Mapping)) or not isinstance(params, Sequence):
        raise RequestError(
            f"{field} must be {kind.__name__} or a list of them, got {type(params).__name__}",
            field=field,
        )
    many = list(params)
    if len(many) != count:
        raise RequestError(f"{field} has {len(many)} entries for {count} prompts", field=field)
    return many
