"""`chairlift generate`: complete prompts from the command line, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig
from chairlift.sampling_params import SamplingParams

if TYPE_CHECKING:
    from chairlift.engine.llm import LLM
    from chairlift.outputs import RequestOutput

MAX_TOKENS = 128


@with_options(
    SamplingParams,
    EngineConfig,
    without=("detokenize", "kept_special_token_ids", "structured_outputs", "pooling_type"),
    defaults={"max_tokens": MAX_TOKENS},
)
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to complete; - reads one from standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A file with one prompt per line.")
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Show a text as it comes. Default: for a single prompt with a single completion.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per prompt.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not show what the engine decides, and why.")
    ] = False,
    *,
    sampling: Values,
    engine: Values,
) -> None:
    """Complete one prompt or many, all in one batch."""
    SamplingParams(**sampling)  # what is wrong by itself needs no model to be refused
    EngineConfig(**engine)
    texts = _read_prompts(prompts or [], file)
    is_single = len(texts) == 1 and sampling.get("n", 1) == 1
    _check_stream(stream, is_single=is_single, as_json=as_json)
    _run(
        texts,
        sampling,
        engine,
        is_streaming=is_single and not as_json if stream is None else stream,
        as_json=as_json,
        quiet=quiet,
    )


def _check_stream(stream: bool | None, *, is_single: bool, as_json: bool) -> None:
    from chairlift.errors import RequestError

    if stream and (as_json or not is_single):
        raise RequestError(
            "--stream takes a single prompt with a single completion, without --json",
            field="stream",
        )


def _read_prompts(prompts: list[str], file: Path | None) -> list[str]:
    from chairlift.errors import RequestError

    texts = [_read_stdin() if prompt == "-" else prompt for prompt in prompts]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise RequestError(f"cannot read --file {file}: {reason}", field="file") from None
        texts += [line for line in lines if line.strip()]
    if not texts:
        raise RequestError(
            "no prompt: give one, or --file, or - to read standard input", field="prompt"
        )
    return texts


def _read_stdin() -> str:
    return sys.stdin.read().rstrip("\n")


def _run(
    texts: list[str],
    sampling: Values,
    engine: Values,
    *,
    is_streaming: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    import dataclasses
    import time

    from chairlift.cli.terminal import note, show_log
    from chairlift.engine.llm import LLM

    show_log(quiet=quiet)
    llm = LLM(**engine)
    params = dataclasses.replace(llm.get_default_sampling_params(), **sampling)
    start_s = time.perf_counter()
    if is_streaming:
        outputs = [_stream(llm, texts[0], params)]
    else:
        outputs = llm.generate(texts, params)
        _show_all(outputs, as_json=as_json)
    llm.close()
    note(_summary(outputs, time.perf_counter() - start_s))


def _stream(llm: LLM, text: str, params: SamplingParams) -> RequestOutput:
    """Show a text as it comes."""
    from chairlift.cli.terminal import show

    shown = 0
    last = None
    for output in llm.stream(text, params):
        so_far = output.outputs[0].text
        show(so_far[shown:], end="")
        shown, last = len(so_far), output
    show("")
    assert last is not None
    return last


def _show_all(outputs: list[RequestOutput], *, as_json: bool) -> None:
    import json

    from chairlift.cli.terminal import show

    for number, output in enumerate(outputs, 1):
        if as_json:
            show(json.dumps(_to_json(output), ensure_ascii=False))
            continue
        if len(outputs) > 1:
            show(f"[{number}] {output.prompt}")
        for completion in output.outputs:
            label = f"({completion.index + 1}) " if len(output.outputs) > 1 else ""
            show(label + completion.text)
        if number < len(outputs):
            show("")


def _to_json(output: RequestOutput) -> dict[str, Any]:
    import dataclasses

    return {
        "prompt": output.prompt,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "outputs": [dataclasses.asdict(completion) for completion in output.outputs],
        "prompt_logprobs": _logprobs_to_json(output.prompt_logprobs),
    }


def _logprobs_to_json(positions: list[Any] | None) -> list[Any] | None:
    import dataclasses

    if positions is None:
        return None
    return [
        None if p is None else {token: dataclasses.asdict(item) for token, item in p.items()}
        for p in positions
    ]


def _summary(outputs: list[RequestOutput], duration_s: float) -> str:
    num_in = sum(len(output.prompt_token_ids) for output in outputs)
    num_out = sum(len(item.token_ids) for output in outputs for item in output.outputs)
    count = f"{len(outputs)} prompts" if len(outputs) > 1 else "1 prompt"
    return (
        f"{count}, {num_in} tokens in, {num_out} out, {duration_s:.2f} s:"
        f" {num_out / max(1e-9, duration_s):.1f} tokens/s"
    )
