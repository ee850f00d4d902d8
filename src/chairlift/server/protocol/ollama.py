"""Ollama's API: what is asked, and the shape of answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from chairlift.server.protocol.chat import MAX_MESSAGES, MAX_TOOL_CALLS
from chairlift.server.protocol.embedding import MAX_INPUTS
from chairlift.server.protocol.field_policy import IsNeutral, is_one_of
from chairlift.server.protocol.sampling_fields import (
    INT32_MAX,
    INT64_MAX,
    LogprobCount,
    Penalty,
    Share,
    StopStrings,
)
from chairlift.server.protocol.strict_model import StrictModel

_DURATION = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h)?)+")

REFUSED: dict[str, IsNeutral] = {
    "template": is_one_of(""),
    "images": is_one_of([]),
    "context": is_one_of([]),
    "width": is_one_of(0),
    "height": is_one_of(0),
    "steps": is_one_of(0),
}
"""What cannot be honoured; neutral values ask for nothing."""
REFUSED_OPTIONS: dict[str, IsNeutral] = {
    "mirostat": is_one_of(0),
    "tfs_z": is_one_of(1, 1.0),
    "typical_p": is_one_of(1, 1.0),
}


def _json_format(value: Any) -> Any:
    if value not in ("", "json") and not isinstance(value, dict):
        raise ValueError('must be "json" or a JSON schema')
    return value


def _keep_alive(value: Any) -> Any:
    """Seconds, or a duration such as 5m."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and _DURATION.fullmatch(value)):
        raise ValueError("must be a number of seconds or a duration such as 5m")
    return value


ModelName = Annotated[str, Field(min_length=1, max_length=1024)]
JsonFormat = Annotated[
    Any,
    BeforeValidator(_json_format),
    WithJsonSchema({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}),
]
KeepAlive = Annotated[
    Any,
    BeforeValidator(_keep_alive),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]


class OllamaOptions(StrictModel):
    """How tokens are chosen; what is not given is as the model wants it."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    """-1 stands for any."""
    num_predict: Annotated[int, Field(ge=-2, le=INT32_MAX)] | None = None
    """-1 and -2: as much as the context has room for, as without it."""
    stop: StopStrings = ()
    repeat_penalty: Annotated[float, Field(gt=0, le=1e6)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    num_ctx: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Without effect up to the server's own context; refused above it."""


class GenerationFields(StrictModel):
    """What both endpoints that generate take."""

    model: ModelName
    stream: bool = True
    options: OllamaOptions | None = None
    format: JsonFormat = ""
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool = False
    top_logprobs: LogprobCount | None = None
    keep_alive: KeepAlive | None = None
    """Without effect: the model is never unloaded."""

    @property
    def asks_to_unload(self) -> bool:
        """Whether the model is to be kept for no time at all."""
        text = str(self.keep_alive)
        return self.keep_alive is not None and not re.search("[1-9]", text)


class OllamaFunction(StrictModel):
    """Which function an assistant called, and how."""

    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None


class OllamaToolCall(StrictModel):
    """One call that an assistant made earlier in the conversation."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaMessage(StrictModel):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[Any] = []
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOL_CALLS)] = []
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(GenerationFields):
    """Body of POST /api/chat.  Without messages, the model is to be loaded."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] = []
    tools: list[dict[str, Any]] = []


class OllamaGenerateRequest(GenerationFields):
    """Body of POST /api/generate.  Without a prompt, the model is to be loaded."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    """The prompt is completed as it is, without the chat template."""


class OllamaShowRequest(StrictModel):
    """Body of POST /api/show."""

    model: ModelName | None = None
    name: ModelName | None = None
    """The older name of `model`."""


class OllamaEmbedFields(StrictModel):
    """What both endpoints that embed take."""

    model: ModelName
    options: OllamaOptions | None = None
    """Without effect, but for a `num_ctx` that the server does not have."""
    keep_alive: KeepAlive | None = None
    """Without effect: the model is never unloaded."""


class OllamaEmbedRequest(OllamaEmbedFields):
    """Body of POST /api/embed.  Without any input, the model is to be loaded."""

    input: str | Annotated[list[str], Field(max_length=MAX_INPUTS)] = []
    truncate: bool = True
    """Inputs that are longer than the context lose their ends; otherwise they are refused."""
    dimensions: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Nothing but the model's own hidden size."""


class OllamaEmbeddingsRequest(OllamaEmbedFields):
    """Body of POST /api/embeddings, which is the older one.  Without a prompt, to be loaded."""

    prompt: str = ""


def _absent(value: object) -> bool:
    return value is None


class FinalAnswer(BaseModel):
    """A whole answer, or the last line of a stream.  Durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool = True
    done_reason: Literal["stop", "length", "load"]
    total_duration: int | None = Field(default=None, exclude_if=_absent)
    load_duration: int | None = Field(default=None, exclude_if=_absent)
    """0: the model is loaded before the server takes requests."""
    prompt_eval_count: int | None = Field(default=None, exclude_if=_absent)
    prompt_eval_duration: int | None = Field(default=None, exclude_if=_absent)
    eval_count: int | None = Field(default=None, exclude_if=_absent)
    eval_duration: int | None = Field(default=None, exclude_if=_absent)
    logprobs: list[Any] | None = Field(default=None, exclude_if=_absent)


class OllamaCalledFunction(BaseModel):
    """Which function is called, and how."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaAnsweredCall(BaseModel):
    """One call of the model's."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | None = Field(default=None, exclude_if=_absent)
    tool_calls: list[OllamaAnsweredCall] | None = Field(default=None, exclude_if=_absent)


class OllamaChatAnswer(FinalAnswer):
    """Answer of POST /api/chat, or the last line of its stream."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(FinalAnswer):
    """Answer of POST /api/generate, or the last line of its stream."""

    response: str
    thinking: str | None = Field(default=None, exclude_if=_absent)


class OllamaEmbedAnswer(BaseModel):
    """Answer of POST /api/embed.  Vectors have length 1; durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(BaseModel):
    """Answer of POST /api/embeddings: the vector as the model has it."""

    embedding: list[float]


class OllamaDetails(BaseModel):
    """What kind of model it is."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    """As the file's name has it."""


class ListedModel(BaseModel):
    """One name of the model."""

    name: str
    model: str
    modified_at: str
    size: int
    """Bytes of its files."""
    digest: str
    """The same for the same model; not the sum of a file."""
    details: OllamaDetails


class OllamaModelList(BaseModel):
    """Answer of GET /api/tags."""

    models: list[ListedModel]


class RunningModel(BaseModel):
    """The model that is loaded, which is the one that is served."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int = 0
    context_length: int


class OllamaRunningList(BaseModel):
    """Answer of GET /api/ps."""

    models: list[RunningModel]


class OllamaModelInfo(BaseModel):
    """Answer of POST /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(BaseModel):
    """Answer of GET /api/version."""

    version: str


class OllamaError(BaseModel):
    """Body of every 4xx and 5xx in this dialect."""

    error: str
