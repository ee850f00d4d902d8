"""What the API knows of the model behind it: names, tokenizer, template, fingerprint."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift._version import __version__
from chairlift.engine.engine import Engine
from chairlift.errors import ConfigError, RequestError
from chairlift.sampling_params import SamplingParams
from chairlift.server.answer_reading import AnswerReading
from chairlift.server.errors import ApiError, not_found
from chairlift.server.protocol.chat import ChatMessage, template_messages
from chairlift.server.protocol.tools import ToolUse
from chairlift.server.server_config import ServerConfig
from chairlift.server.tool_prompt import with_tools_as_text
from chairlift.tokenizer.chat_prompt import encode_chat
from chairlift.tokenizer.chat_template import ChatTemplate
from chairlift.tokenizer.tokenizer import Tokenizer

_MAX_SHOWN_NAME = 100
_DIGESTED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One loaded model under its names in the API."""

    names: tuple[str, ...]
    root: str
    created: int
    fingerprint: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: SamplingParams
    max_model_len: int
    vocab_size: int
    hidden_size: int
    """Of its embeddings."""
    check_length: Callable[[str], None]
    """Raises `RequestError` for a text that is too long whatever its tokens are."""
    max_prompt_chars: int
    """No text that fits the context is longer."""
    has_priorities: bool
    """Whether a request's priority changes anything."""
    reading: AnswerReading
    """How answers in chats are read."""

    @classmethod
    def from_engine(
        cls, engine: Engine, config: ServerConfig, template_source: str | None
    ) -> ServedModel:
        """`template_source` replaces the model's own chat template."""
        model = engine.model
        template = _chat_template(template_source, model.tokenizer) or model.chat_template
        return cls(
            names=tuple(config.served_model_name) or (model.name,),
            root=model.name,
            created=int(time.time()),
            fingerprint=_fingerprint(engine),
            tokenizer=model.tokenizer,
            chat_template=template,
            defaults=model.defaults.sampling_params(),
            max_model_len=model.resolved.memory.max_model_len,
            vocab_size=model.config.vocab_size,
            hidden_size=model.config.hidden_size,
            check_length=engine.input_processor.check_length,
            max_prompt_chars=engine.input_processor.max_prompt_chars,
            has_priorities=model.resolved.scheduler.scheduling_policy == "priority",
            reading=AnswerReading.of_template(
                template,
                tool_parser=config.tool_parser,
                reasoning_parser=config.reasoning_parser,
            ),
        )

    def check_name(self, name: str) -> None:
        """Raises `ApiError` 404 for a model that is not served here."""
        if name not in self.names:
            raise self.unknown(name)

    def unknown(self, name: str) -> ApiError:
        return not_found(
            f"there is no model {name[:_MAX_SHOWN_NAME]!r} here; there is {self.names[0]!r}",
            code="model_not_found",
            param="model",
        )

    @property
    def can_think(self) -> bool:
        """Whether its answers have thoughts, or its chat template knows how to ask for them."""
        asks = self.mentions("reasoning_effort") or self.mentions("enable_thinking")
        return asks or self.reading.reasoning is not None

    @property
    def capabilities(self) -> list[str]:
        """What it can do, in Ollama's words."""
        found = {
            "completion": True,
            "embedding": True,
            "tools": self.reading.tool_parser is not None,
            "thinking": self.can_think,
        }
        return [name for name, is_there in found.items() if is_there]

    def mentions(self, word: str) -> bool:
        """Whether the chat template knows a variable or a role."""
        return self.chat_template is not None and word in (self.chat_template.source or "")

    def special_ids_of(self, texts: Sequence[str]) -> list[int]:
        """Ids of those that are control tokens of this model."""
        ids = {self.tokenizer.special_id(text) for text in texts}
        return sorted(id for id in ids if id is not None)

    def encode_messages(
        self,
        messages: Sequence[ChatMessage],
        *,
        use: ToolUse | None = None,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> tuple[str, list[int]]:
        """The prompt for a conversation, as text and tokens.  Raises `RequestError`.

        `use`: the tools that the model is told of.
        """
        if self.chat_template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or start the server with"
                " --chat-template",
                field="messages",
            )
        turns = template_messages(list(messages))
        if not self.mentions("developer"):
            for turn in turns:
                if turn["role"] == "developer":
                    turn["role"] = "system"
        tools = None
        if not self.reading.takes_tools:
            turns = with_tools_as_text(turns, use, takes_system=self.reading.takes_system)
        elif use is not None:
            tools = [tool.for_template() for tool in use.callable_tools]
        return encode_chat(
            self.tokenizer,
            self.chat_template,
            turns,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            check_text=self.check_length,
            **variables,
        )


def read_template(asked: str | None) -> str | None:
    """The text of a chat template that is a file, or that text itself.  Raises `ConfigError`."""
    if asked is None:
        return None
    source = asked
    try:
        if "{" not in asked:
            source = Path(asked).read_text(encoding="utf-8")
        ChatTemplate(source, bos_token="", eos_token="").compile()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the chat template {asked}: {reason}", field="chat_template"
        ) from None
    except RequestError as error:
        raise ConfigError(f"chat_template: {error}", field="chat_template") from None
    return source


def _chat_template(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    if source is None:
        return None
    return ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)


def _fingerprint(engine: Engine) -> str:
    """Changes whenever the same request could get another answer: weights, version, kernels."""
    model = engine.model
    digest = hashlib.sha256(f"{__version__}\0{model.kernels_name}\0".encode())
    path = model.path
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(_ends_of(file))
    return f"fp_{digest.hexdigest()[:12]}"


def _ends_of(file: Path) -> bytes:
    """Name, size, head and tail: to read all of a large model would take too long."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(_DIGESTED_BYTES)
        stream.seek(max(0, size - _DIGESTED_BYTES))
        return f"{file.name}\0{size}\0".encode() + head + stream.read()
