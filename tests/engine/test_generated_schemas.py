"""Schemas by the hundred: what finishes is valid, and what is hostile harms nobody."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import jsonschema
import pytest

from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError
from chairlift.outputs import CompletionOutput
from chairlift.sampling_params import SamplingParams
from chairlift.structured_outputs import StructuredOutputsParams
from engines import Job, make_engine, run_jobs
from schema_makers import Schema, SchemaMaker, hostile_schemas

NUM_SCHEMAS = 500 if os.environ.get("CHAIRLIFT_FULL") == "1" else 25
AT_ONCE = 25
MAX_TOKENS = 220


def schema_job(seed: int, schema: Schema) -> Job:
    params = SamplingParams(
        max_tokens=MAX_TOKENS,
        temperature=0.0 if seed % 2 else 0.8,
        seed=seed,
        structured_outputs=StructuredOutputsParams(json=schema),
    )
    return Job(prompt=f"Example {seed} of an object as JSON:\n", params=params)


@pytest.mark.real_model
@pytest.mark.timeout(3000)
def test_every_finished_answer_is_valid(load_default_model: Callable[..., LoadedModel]) -> None:
    model = load_default_model("int8")
    num_finished = 0
    for first in range(0, NUM_SCHEMAS, AT_ONCE):
        schemas = {seed: SchemaMaker(seed).schema() for seed in range(first, first + AT_ONCE)}
        jobs = [schema_job(seed, schema) for seed, schema in schemas.items()]
        for (seed, schema), output in zip(
            schemas.items(), run_jobs(make_engine(model), jobs), strict=True
        ):
            completion = output.outputs[0]
            assert completion.finish_reason in ("stop", "length"), (seed, completion.error)
            if completion.finish_reason == "stop":
                num_finished += 1
                jsonschema.validate(
                    json.loads(completion.text),
                    schema,
                    jsonschema.Draft202012Validator,
                    format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
                )
    print(f"{num_finished} of {NUM_SCHEMAS} answers finished, all of them valid")
    assert num_finished >= 0.9 * NUM_SCHEMAS


@pytest.mark.timeout(600)
def test_hostile_schemas_change_no_neighbour(load_tiny: Callable[..., LoadedModel]) -> None:
    """They arrive one a step beside a seeded request, which says what it says alone."""
    model = load_tiny("llama3", "int8")
    neighbour = Job(
        prompt="the neighbour",
        params=SamplingParams(max_tokens=200, temperature=0.9, seed=8, ignore_eos=True),
    )
    alone = run_jobs(make_engine(model), [neighbour])[0].outputs[0]
    engine, hostile = make_engine(model), hostile_schemas()
    refused, ended = [], 0
    engine.add_request(neighbour.prompt, neighbour.params, request_id="neighbour")
    together: CompletionOutput | None = None
    while engine.has_unfinished_requests or hostile:
        if hostile:
            error = _try(engine, hostile.pop())
            refused += [error] if error else []
        for output in engine.step():
            if output.request_id == "neighbour":
                together = output.outputs[0]
            elif output.finished:
                ended += 1
    assert together is not None
    assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
    assert len(refused) + ended == len(hostile_schemas()) and len(refused) > 40
    assert all(error.startswith("structured_outputs.json ") for error in refused)
    engine.scheduler.check_integrity()


def _try(engine: Engine, schema: Schema) -> str | None:
    """Why it is refused; None if it was queued, to end by its length at the latest."""
    try:
        asked = StructuredOutputsParams(json=schema)
        params = SamplingParams(max_tokens=8, temperature=1.0, seed=1, structured_outputs=asked)
        engine.add_request("hostile", params)
    except RequestError as error:
        return str(error)
    return None
