"""The ways to ask for structured output: OpenAI's `response_format`, vLLM's fields old and new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from chairlift.errors import RequestError
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.structured_outputs import StructuredOutputsParams

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
"""vLLM's older fields, by the name of what they ask for."""


def _schema(value: Any) -> Any:
    if not isinstance(value, (str, dict)):
        raise ValueError("must be a JSON schema, an object or its JSON")
    return value


Schema = Annotated[
    Any,
    BeforeValidator(_schema),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
]


class JsonSchemaFormat(StrictModel):
    """A schema with its name."""

    model_config = ConfigDict(protected_namespaces=())

    name: Annotated[str, Field(min_length=1, max_length=256)] = "schema"
    description: str | None = None
    """Without effect on the tokens."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    """The schema holds either way."""


class ResponseFormat(StrictModel):
    """What OpenAI's clients send."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(StrictModel):
    """What vLLM's clients send."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None


class StructuredFields(StrictModel):
    """At most one of these asks for something."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None

    def structured(self) -> StructuredOutputsParams | None:
        """What the text must look like.  Raises `ApiError`, naming the field as it was sent."""
        asked = self._asked()
        if len(asked) > 1:
            first, second, *_ = asked
            raise bad_request(f"{second} does not go with {first}", param=second)
        if not asked:
            if self.guided_whitespace_pattern is not None:
                raise bad_request(
                    "guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern"
                )
            return None
        ((name, options),) = asked.items()
        try:
            return StructuredOutputsParams(**options)
        except RequestError as error:
            told = self.as_sent(error)
            raise bad_request(str(told), param=told.field or name) from None

    def as_sent(self, error: RequestError) -> RequestError:
        """The same error with the name of the field that the client has sent."""
        asked = self._asked()
        if len(asked) != 1 or not (error.field or "").startswith("structured_outputs"):
            return error
        (name,) = asked
        field, _, kind = (error.field or "").partition(".")
        sent = f"{name}.{kind}" if kind and name == "structured_outputs" else name
        if kind and name == "response_format" and self.response_format is not None:
            sent = "response_format" + ".json_schema.schema" * (kind == "json")
        text = str(error).removeprefix(error.field or field)
        return RequestError(f"{sent}{text}" if text != str(error) else text, field=sent)

    def _asked(self) -> dict[str, dict[str, Any]]:
        """Options of `StructuredOutputsParams` by the field that asks for them."""
        asked: dict[str, dict[str, Any]] = {}
        if self.response_format is not None:
            options = _of_response_format(self.response_format)
            if options:
                asked["response_format"] = options
        if self.structured_outputs is not None:
            asked["structured_outputs"] = _of_structured_outputs(self.structured_outputs)
        for name, kind in GUIDED.items():
            value = getattr(self, name)
            if value is not None and value is not False:
                asked[name] = {kind: value, "whitespace_pattern": self.guided_whitespace_pattern}
        return asked


def _of_response_format(format: ResponseFormat) -> dict[str, Any]:
    _refuse_unknown("response_format", format.model_extra)
    if format.type == "json_schema":
        if format.json_schema is None:
            raise bad_request(
                "response_format.json_schema is required", param="response_format.json_schema"
            )
        _refuse_unknown("response_format.json_schema", format.json_schema.model_extra)
        return {"json": format.json_schema.schema_}
    if format.json_schema is not None:
        raise bad_request(
            f"response_format.json_schema does not go with type {format.type}",
            param="response_format.json_schema",
        )
    return {"json_object": True} if format.type == "json_object" else {}


def _of_structured_outputs(asked: StructuredOutputs) -> dict[str, Any]:
    _refuse_unknown("structured_outputs", asked.model_extra)
    names = [name for name in StructuredOutputs.model_fields if name != "json_"]
    return {"json": asked.json_} | {name: getattr(asked, name) for name in names}


def _refuse_unknown(field: str, unknown: Mapping[str, Any] | None) -> None:
    """What says how the text must look is honoured or refused, never left out."""
    for name in unknown or ():
        shown = f"{field}.{name[:60]}"
        raise unsupported(shown, f"{shown} is not supported by this server")
