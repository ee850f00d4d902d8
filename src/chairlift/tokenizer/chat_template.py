"""ChatTemplate: renders a list of chat messages into the text of a prompt.

The template comes with the model file, so it is a stranger's program: it runs in Jinja's sandbox,
against a deadline that loops and macros check, and with caps on what it may build.  Does not know
the tokenizer: it is handed the texts of BOS and EOS.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chairlift.errors import RequestError

MAX_OUTPUT_CHARS = 16_000_000
MAX_RENDER_S = 5.0

_FIELD = "messages"
_RESERVED = ("messages", "bos_token", "eos_token")


class ChatTemplate:
    """A model's chat template.  Compiled at the first use; safe to use from several threads."""

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str,
        eos_token: str,
        max_output_chars: int = MAX_OUTPUT_CHARS,
        max_render_s: float = MAX_RENDER_S,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`source` None: the model has no template, and `render` says so.

        `max_output_chars` and `max_render_s` bound a hostile template; `now` feeds templates that
        write today's date.
        """
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._max_output_chars = max_output_chars
        self._max_render_s = max_render_s
        self._now = now
        self._template: jinja2.Template | None = None
        self._environment: _ChatEnvironment | None = None
        self._compile_lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages`; `add_generation_prompt` opens the answer's turn.

        `kwargs` are further variables of the template.  Content given as a list of text parts is
        joined with line ends.  Raises RequestError for a malformed message, a model without a
        template, and whatever the template itself complains about.
        """
        for name in _RESERVED:
            if name in kwargs:
                raise RequestError(
                    f"{name} is set by the server and cannot be a template variable; leave it out",
                    field=name,
                )
        variables = {
            "messages": normalize_messages(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": None,
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
        } | kwargs
        template, environment = self._compiled()
        environment.start_clock(self._max_render_s)
        try:
            return self._join(template, variables)
        except RequestError:
            raise
        except Exception as error:  # A template can raise anything that Python can.
            raise _template_error(error) from error

    def compile(self) -> None:
        """Raises RequestError now, rather than at the first use, for a template that is broken."""
        self._compiled()

    def reads(self, variable: str) -> bool:
        """Whether the template looks at a variable that it does not set itself."""
        if self.source is None:
            return False
        _, environment = self._compiled()
        return variable in find_undeclared_variables(environment.parse(self.source))

    def _join(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        chunks: list[str] = []
        num_chars = 0
        for chunk in template.generate(**variables):
            num_chars += len(chunk)
            if num_chars > self._max_output_chars:
                _refuse_size(self._max_output_chars)
            chunks.append(chunk)
        return "".join(chunks)

    def _compiled(self) -> tuple[jinja2.Template, _ChatEnvironment]:
        if self.source is None:
            raise RequestError(
                "this model has no chat template; use text completions, or give a template",
                field=_FIELD,
            )
        with self._compile_lock:
            if self._environment is None:
                self._environment = _ChatEnvironment(self._max_output_chars, self._now)
            if self._template is None:
                try:
                    self._template = self._environment.from_string(self.source)
                except Exception as error:  # Deep nesting gives RecursionError, for one.
                    raise _template_error(error) from error
            return self._template, self._environment


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of `messages` in which every content is a string.

    Raises RequestError that names the message at fault, such as `messages[2].content`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages must be a list with at least one message", field=_FIELD)
    return [_normalize_message(index, message) for index, message in enumerate(messages)]


def _normalize_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content", field=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        field = f"{where}.role"
        raise RequestError(f"{field} must be a string such as 'user'", field=field)
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    return {**message, "content": _text_of(content, f"{where}.content")}


def _text_of(content: object, field: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text_of_part(part, f"{field}[{i}]") for i, part in enumerate(content))
    raise RequestError(f"{field} must be a string or a list of text parts", field=field)


def _text_of_part(part: object, field: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise RequestError(
        f'{field} must be {{"type": "text", "text": "..."}}; this model reads text only',
        field=field,
    )


def _template_error(error: Exception) -> RequestError:
    detail = " ".join(str(error).split())
    if isinstance(error, _RaisedByTemplate):
        return RequestError(f"the chat template refuses the messages: {detail}", field=_FIELD)
    if isinstance(error, jinja2.TemplateSyntaxError):
        return RequestError(
            f"the model's chat template is broken at line {error.lineno}: {detail};"
            " give another template",
            field=_FIELD,
        )
    return RequestError(
        f"the chat template failed on these messages: {type(error).__name__}: {detail}",
        field=_FIELD,
    )


def _refuse_size(max_chars: int) -> NoReturn:
    raise RequestError(
        f"the chat template builds more than {max_chars} characters; send fewer or shorter"
        " messages",
        field=_FIELD,
    )


class _RaisedByTemplate(Exception):
    """The template called raise_exception."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates, with the helpers that they expect.

    Each loop round and macro call checks the clock of its thread; sums, products and joined text
    are measured before they are built.  NOTE: a single filter or string method that is asked for
    a huge result, such as `center`, is not caught before it has built it.
    """

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self, max_chars: int, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self._max_chars = max_chars
        self._clock = threading.local()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: now().strftime(pattern)

    def start_clock(self, max_render_s: float) -> None:
        """Starts the deadline of the render that this thread is about to do."""
        self._clock.deadline = time.monotonic() + max_render_s

    def check_clock(self) -> None:
        """Raises RequestError once this thread's render has run out of time."""
        if time.monotonic() > getattr(self._clock, "deadline", float("inf")):
            raise RequestError(
                "the chat template takes too long on these messages; send fewer or shorter ones",
                field=_FIELD,
            )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        repeating: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
            *template.find_all(nodes.CallBlock),
        ]
        for node in repeating:
            check = self._call("check_clock", [], node.lineno)
            node.body.insert(0, nodes.ExprStmt(check, lineno=node.lineno))
        for joint in template.find_all(nodes.Concat):
            parts = nodes.List(joint.nodes, lineno=joint.lineno)
            joint.nodes = [self._call("join_parts", [parts], joint.lineno)]
        template.set_environment(self)
        return template

    def _call(self, method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Expr:
        target = nodes.EnvironmentAttribute(method, lineno=lineno)
        return nodes.Call(target, arguments, [], None, None, lineno=lineno)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins what a macro or a block has written."""
        texts = list(parts)
        self._check_size(sum(map(len, texts)))
        return "".join(texts)

    def join_parts(self, parts: Iterable[object]) -> str:
        """What the `~` operator means."""
        return self.concat(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            self._check_product(left, right)
            self._check_product(right, left)
        elif operator == "**":
            self._check_power(left, right)
        elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self._check_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, str | list | tuple) and isinstance(right, int):
            self._check_size(len(left) * right)

    def _check_power(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            self._check_size(left.bit_length() * right)

    def _check_size(self, num_items: int) -> None:
        if num_items > self._max_chars:
            _refuse_size(self._max_chars)


def _raise_exception(message: object) -> NoReturn:
    raise _RaisedByTemplate(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates want it: no HTML escapes, and letters as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
