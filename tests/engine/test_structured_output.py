"""Constrained requests through the whole engine: what they say, how they end, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError
from chairlift.outputs import CompletionOutput
from chairlift.sampling_params import SamplingParams
from chairlift.structured_outputs import StructuredOutputsParams
from engines import Job, make_engine, run_jobs

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["good", "bad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}


def complete(
    model: LoadedModel, prompt: Any, *, max_tokens: int = 200, **options: Any
) -> CompletionOutput:
    """One request alone; `options` of both kinds."""
    kinds = StructuredOutputsParams.__dataclass_fields__
    structured = {name: options.pop(name) for name in list(options) if name in kinds}
    params = SamplingParams(
        max_tokens=max_tokens,
        structured_outputs=StructuredOutputsParams(**structured) if structured else None,
        **{"temperature": 0.0, **options},
    )
    (output,) = run_jobs(make_engine(model), [Job(prompt=prompt, params=params)])
    return output.outputs[0]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "seed"])
def test_every_kind_holds_its_promise(
    load_tiny: Callable[..., LoadedModel], sampling: dict[str, Any]
) -> None:
    """On a random model, whose own wishes are noise."""
    model = load_tiny("llama3", "int8")
    found = complete(model, "ab", json=PERSON, max_tokens=400, **sampling)
    assert found.finish_reason == "stop" and found.stop_reason is None
    person = json.loads(found.text)
    assert list(person) == ["name", "age", "mood"]
    assert 0 <= person["age"] <= 120 and person["mood"] in ("good", "bad")
    found = complete(model, "ab", regex=r"[0-9]{3}-(?:x|yz){2}", **sampling)
    assert re.fullmatch(r"[0-9]{3}-(?:x|yz){2}", found.text) and found.finish_reason == "stop"
    choices = ["größer", 'he said "no"\n', "größte"]
    found = complete(model, "ab", choice=choices, **sampling)
    assert found.text in choices and found.finish_reason == "stop"
    found = complete(model, "ab", grammar='start: "<" X{2} ">"\nX: /[a-c]/', **sampling)
    assert re.fullmatch("<[a-c]{2}>", found.text) and found.finish_reason == "stop"
    found = complete(model, "ab", grammar='root ::= "<" [a-c] [a-c] ">"', **sampling)
    assert re.fullmatch("<[a-c]{2}>", found.text) and found.finish_reason == "stop"


def test_a_grammar_may_name_special_tokens(load_tiny: Callable[..., LoadedModel]) -> None:
    model = load_tiny("llama3", "int8")
    bos = model.tokenizer.bos_token
    assert re.fullmatch("<.*>", bos)
    found = complete(
        model,
        "ab",
        grammar=f'start: "call " {bos} body\nbody: %json {json.dumps(PERSON)}',
        skip_special_tokens=False,
        max_tokens=400,
    )
    assert found.finish_reason == "stop"
    assert found.token_ids[5] == model.tokenizer.bos_id
    before, _, after = found.text.partition(bos)
    assert before == "call " and list(json.loads(after)) == ["name", "age", "mood"]
    found = complete(model, "ab", choice=[f"x{bos}y"])
    assert found.text == f"x{bos}y", "between quotes it is text"
    assert model.tokenizer.bos_id not in found.token_ids


def test_length_and_stop_strings_end_it_early(load_tiny: Callable[..., LoadedModel]) -> None:
    model = load_tiny("llama3", "int8")
    found = complete(model, "ab", json=PERSON, max_tokens=3)
    assert found.finish_reason == "length" and '{"name":'.startswith(found.text.replace(" ", ""))
    found = complete(model, "ab", choice=["stop here"], stop=["p h"])
    assert (found.text, found.finish_reason, found.stop_reason) == ("sto", "stop", "p h")


def test_a_complete_text_ends_in_spite_of_ignore_eos(
    load_tiny: Callable[..., LoadedModel],
) -> None:
    found = complete(load_tiny("llama3", "int8"), "ab", choice=["abc"], ignore_eos=True)
    assert (found.text, found.finish_reason) == ("abc", "stop")


@pytest.mark.parametrize(
    "options",
    [
        {"min_tokens": 9},
        {"bad_words": ["b"]},
        {"allowed_token_ids": [5, 6, 7]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_nothing_left_ends_that_request_alone(
    load_tiny: Callable[..., LoadedModel], options: dict[str, Any]
) -> None:
    model = load_tiny("llama3", "int8")
    neighbour = SamplingParams(max_tokens=12, temperature=0.8, seed=4, ignore_eos=True)
    alone = run_jobs(make_engine(model), [Job(prompt="xyz", params=neighbour)])[0].outputs[0]
    params = SamplingParams(
        max_tokens=20,
        temperature=0.0,
        structured_outputs=StructuredOutputsParams(choice=["abc"]),
        **options,
    )
    jobs = [Job(prompt="ab", params=params), Job(prompt="xyz", params=neighbour)]
    found, other = (output.outputs[0] for output in run_jobs(make_engine(model), jobs))
    assert found.finish_reason == "error" and found.error is not None
    assert found.error.startswith("structured_outputs, ") and "no token" in found.error
    assert (other.token_ids, other.finish_reason) == (alone.token_ids, "length")


def test_other_options_go_with_a_grammar(load_tiny: Callable[..., LoadedModel]) -> None:
    model = load_tiny("llama3", "int8")
    a, b = (model.tokenizer.encode(text, add_special_tokens=False)[0] for text in "ab")
    regex = "[a-d]{6}"
    assert complete(model, "x", regex=regex, logit_bias={b: 100}).text == "bbbbbb"
    assert complete(model, "x", regex=regex, allowed_token_ids=[a, *model.tokenizer.eos_ids]).text
    assert "a" not in complete(model, "x", regex=regex, bad_words=["a"]).text
    many = complete(model, "x", regex="[a-d]*", min_tokens=30, max_tokens=40)
    assert len(many.token_ids) >= 30
    params = SamplingParams(
        n=3,
        temperature=1.0,
        seed=1,
        logprobs=2,
        max_tokens=20,
        structured_outputs=StructuredOutputsParams(regex=regex),
    )
    (output,) = run_jobs(make_engine(model), [Job(prompt="x", params=params)])
    texts = [completion.text for completion in output.outputs]
    assert all(re.fullmatch(regex, text) for text in texts) and len(set(texts)) > 1


def test_what_cannot_be_compiled_is_refused_before_it_is_queued(
    load_tiny: Callable[..., LoadedModel],
) -> None:
    engine = make_engine(load_tiny("llama3", "int8"))
    bad: list[dict[str, Any]] = [
        {"json": {"type": "something"}},
        {"json": {"type": "string", "pattern": "((("}},
        {"json": {"enum": []}},
        {"json": {"$ref": "http://127.0.0.1:9/schema.json"}},
        {"json": {"$ref": "#/$defs/missing"}},
        {"json": {"type": "integer", "multipleOf": 0}},
        {"json": {"$ref": "#"}},
        {"regex": "((("},
        {"regex": "(?=a)b"},
        {"grammar": "start: nothing"},
        {"grammar": "start: <|no_such_token|>"},
        {"grammar": "root ::= ("},
    ]
    for options in bad:
        with pytest.raises(RequestError) as caught:
            engine.add_request(
                "ab", SamplingParams(structured_outputs=StructuredOutputsParams(**options))
            )
        assert caught.value.field == f"structured_outputs.{next(iter(options))}", options
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
        assert not engine.has_unfinished_requests


def test_a_missing_package_is_told(
    load_tiny: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="pip install llguidance"):
        complete(load_tiny("llama3", "int8"), "ab", json_object=True)
