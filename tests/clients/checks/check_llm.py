"""The command `llm`: prompts, streams, conversations, schemas, tools, all kinds of its models."""

# /// script
# dependencies = ["llm==0.36"]
# ///

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from checklist import API_KEY, URL, keep_promises, metric, model_name, promise, run_tool

MODEL = model_name()
HOME = Path("llm-home").resolve()
BASE = f"{URL}/v1"
QUESTION = "Name three colours of the rainbow."
BRIEF = ("-o", "temperature", 0, "-o", "max_tokens", 24)
PATIENT = ("-o", "temperature", 0, "-o", "max_tokens", 400)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = '''
def look_up(city: str = "", days: int = 1) -> str:
    """Looks the weather up."""
    return "sunny"
'''

HOME.mkdir(exist_ok=True)
(HOME / "extra-openai-models.yaml").write_text(
    json.dumps(
        [
            {"model_id": name, "model_name": MODEL, "api_base": BASE, **more}
            for name, more in {
                "chat": {"supports_schema": True, "supports_tools": True},
                "text": {"completion": True},
                "responses": {"responses": True, "supports_schema": True, "supports_tools": True},
            }.items()
        ]
    )
)
os.environ["LLM_USER_PATH"] = str(HOME)


def llm(*words: object) -> str:
    return run_tool("llm", *words).strip()


def ask(model: str, prompt: str, *words: object) -> str:
    return llm("prompt", prompt, "-m", model, "--key", API_KEY, *words)


def last_logged() -> dict[str, Any]:
    (logged,) = json.loads(llm("logs", "-n", 1, "--json"))
    return dict(logged)


@promise
def models_are_listed() -> None:
    assert llm("openai", "endpoint", BASE, "--models", "--key", API_KEY).splitlines() == [MODEL]


@promise
def a_stream_has_the_text_of_the_whole_answer() -> None:
    whole = ask("chat", QUESTION, "--no-stream", *BRIEF)
    assert whole and ask("chat", QUESTION, *BRIEF) == whole
    logged = last_logged()
    assert logged["input_tokens"] > 5 and 1 <= logged["output_tokens"] <= 24


@promise
def responses_answer_as_chats_do() -> None:
    expected = ask("chat", QUESTION, *BRIEF)
    assert ask("responses", QUESTION, "--no-stream", *BRIEF) == expected
    assert ask("responses", QUESTION, *BRIEF) == expected


@promise
def an_address_alone_is_enough() -> None:
    expected = ask("chat", QUESTION, *BRIEF)
    given = ("openai", "endpoint", BASE, QUESTION, "-m", MODEL, "--key", API_KEY, *BRIEF)
    assert llm(*given) == expected
    assert llm(*given, "--responses") == expected


@promise
def text_completions_work() -> None:
    whole = ask("text", "The capital of France is", "--no-stream", *BRIEF)
    assert whole and ask("text", "The capital of France is", *BRIEF) == whole


@promise
def conversations_go_on() -> None:
    ask("chat", QUESTION, "-s", "Be brief.", *BRIEF)
    first = last_logged()
    llm("prompt", "And another one?", "-c", "--key", API_KEY, *BRIEF)
    second = last_logged()
    assert second["conversation_id"] == first["conversation_id"]
    assert second["input_tokens"] > first["input_tokens"] + first["output_tokens"]


@promise
def objects_fit_their_schema() -> None:
    for model in ("chat", "responses"):
        found = json.loads(
            ask(model, "How is the weather in Paris?", "--schema", json.dumps(SCHEMA), *PATIENT)
        )
        assert found["city"] in ("Paris", "Rome") and 1 <= found["days"] <= 9, (model, found)


@promise
def tools_are_told_to_the_model() -> None:
    """Without streams: it reads no usage from one that ends at the length."""
    for model in ("chat", "responses"):
        ask(model, QUESTION, "--no-stream", *BRIEF)
        without = last_logged()["input_tokens"]
        ask(model, QUESTION, "--no-stream", "--functions", TOOL, *BRIEF)
        assert last_logged()["input_tokens"] > without + 50, model


@promise
def errors_name_what_is_wrong() -> None:
    before = metric("chairlift:http_requests_total", status="404")
    try:
        llm("openai", "endpoint", BASE, QUESTION, "-m", "no-such-model", "--key", API_KEY)
    except AssertionError as error:
        assert "ended with 1" in str(error) and "no-such-model" in str(error), error
    else:
        raise AssertionError("an unknown model is no error")
    assert metric("chairlift:http_requests_total", status="404") == before + 1


keep_promises()
