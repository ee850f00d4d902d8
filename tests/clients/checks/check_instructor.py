"""instructor: objects by calls and by schema, lists, partial objects."""

# /// script
# dependencies = ["instructor==1.17.0"]
# ///

from __future__ import annotations

from typing import Any, Literal

import instructor
from checklist import API_KEY, URL, keep_promises, model_name, promise
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

OPTIONS: Any = {
    "model": model_name(),
    "messages": [{"role": "user", "content": "How is the weather in Paris for 3 days?"}],
    "temperature": 0,
    "max_tokens": 400,
    "max_retries": 0,
}
openai = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0)


class LookUp(BaseModel):
    """Looks the weather up."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai, mode=mode)


@promise
def an_object_by_a_call() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
        found = client(mode).create(response_model=LookUp, **OPTIONS)
        assert isinstance(found, LookUp), mode


@promise
def an_object_by_a_schema() -> None:
    found = client(instructor.Mode.JSON_SCHEMA).create(response_model=LookUp, **OPTIONS)
    assert isinstance(found, LookUp)


@promise
def an_object_with_its_raw_answer() -> None:
    found, raw = client(instructor.Mode.TOOLS).create_with_completion(
        response_model=LookUp, **OPTIONS
    )
    assert isinstance(found, LookUp) and raw.usage.completion_tokens >= 1


@promise
def a_partial_object_grows_to_the_whole() -> None:
    one = client(instructor.Mode.TOOLS)
    *_, last = one.create_partial(response_model=LookUp, **OPTIONS)
    whole = one.create(response_model=LookUp, **OPTIONS)
    assert last.model_dump() == whole.model_dump()


@promise
async def async_objects_are_those_of_sync() -> None:
    other = AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0)
    one = instructor.from_openai(other, mode=instructor.Mode.TOOLS)
    found = await one.create(response_model=LookUp, **OPTIONS)
    same = client(instructor.Mode.TOOLS).create(response_model=LookUp, **OPTIONS)
    assert found.model_dump() == same.model_dump()


keep_promises()
