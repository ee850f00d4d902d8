"""What the text of a request must look like: names and meaning as in vLLM.

A frozen value object that checks its own shape and size; it knows neither tokens nor how a grammar
is compiled.  Limits are such that compiling is short (docs/decisions).
"""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from chairlift.errors import RequestError

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64
"""Levels of JSON: 32 objects, each among the properties of the one before."""
MAX_SCHEMA_NODES = 2000
"""Values in the schema's JSON, names of members left out."""
MAX_LOWER_BOUND = 100_000
"""Of lengths in a schema: what must be longer can be told by nobody."""
MAX_REGEX_LENGTH = 1024
MAX_CHOICES = 1024
MAX_CHOICES_BYTES = 64 * 1024
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_WHITESPACE_PATTERN_LENGTH = 128

KINDS = ("json", "regex", "choice", "grammar", "json_object")
"""Ways to constrain a text: a request has exactly one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """A constraint on one request's text.  Raises `RequestError`, naming the field.

    Every token is masked by the constraint before penalties, temperature and top_p look at it.  An
    end token of the model may come only where the text is complete, and ends it in spite of
    `ignore_eos`.  A text that ends by `max_tokens` or a stop string is the beginning of one that
    matches.  If the constraint, `min_tokens`, `bad_words` and `allowed_token_ids` together leave no
    token, the request ends with an error.

    `grammar` is a Lark grammar as llguidance reads it, or a GBNF grammar (with `root ::=`).  In
    Lark, `%json {...}` stands for a value of that JSON schema, and a special token of the model
    stands in a rule by its text in angle brackets, as it is spelled in the vocabulary:

    ```
    start: "Calling." <|tool|> call <|im_end|>
    call: %json {"type": "object", "properties": {"name": {"const": "f"}}, "required": ["name"]}
    ```

    `<tool_call>` is that token of a model that has it as one, `<[17]>` the token with that id.
    What is written between quotes is text, which control tokens never spell.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as a mapping or as its JSON; kept as JSON."""
    regex: str | None = None
    """A regular expression that the whole text matches, in the syntax of Rust's `regex` crate."""
    choice: Sequence[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """The text is in this grammar's language."""
    json_object: bool = False
    """The text is any JSON object."""
    disable_any_whitespace: bool = False
    """JSON without any space or newline between its parts, other than in `grammar`."""
    whitespace_pattern: str | None = None
    """A regular expression for what may stand between the parts of JSON, instead of nothing, a
    space, or a newline with its indentation."""

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # a frozen value normalises itself here and nowhere else
        for name in ("json_object", "disable_any_whitespace"):
            if getattr(self, name) is None:
                set_(self, name, False)
            if not isinstance(getattr(self, name), bool):
                _refuse(name, "must be true or false")
        if self.choice is not None:
            set_(self, "choice", _choices(self.choice))
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise RequestError(
                f"structured_outputs takes exactly one of {', '.join(KINDS)},"
                f" got {' and '.join(given) or 'none'}",
                field="structured_outputs",
            )
        if self.json is not None:
            set_(self, "json", _schema(self.json))
        if self.regex is not None:
            _text("regex", self.regex, MAX_REGEX_LENGTH)
        if self.grammar is not None:
            _text("grammar", self.grammar, MAX_GRAMMAR_BYTES)
        self._check_whitespace()

    @property
    def kind(self) -> str:
        """The one of KINDS that is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    def _check_whitespace(self) -> None:
        pattern = self.whitespace_pattern
        if pattern is None and not self.disable_any_whitespace:
            return
        name = "whitespace_pattern" if pattern is not None else "disable_any_whitespace"
        if self.kind not in ("json", "json_object"):
            _refuse(name, f"goes with json and json_object, not with {self.kind}")
        if pattern is not None:
            if self.disable_any_whitespace:
                _refuse(name, "does not go with disable_any_whitespace")
            _text(name, pattern, MAX_WHITESPACE_PATTERN_LENGTH)


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        _refuse("choice", "must be a list of texts")
    if not 0 < len(value) <= MAX_CHOICES:
        _refuse("choice", f"takes 1 to {MAX_CHOICES} texts, got {len(value)}")
    for text in value:
        if not isinstance(text, str) or not text:
            _refuse("choice", "takes texts that are not empty")
        _check_unicode("choice", text)
    if sum(map(len, value)) > MAX_CHOICES_BYTES:
        _refuse("choice", f"takes at most {MAX_CHOICES_BYTES} characters in all")
    return tuple(value)


def _text(name: str, value: object, limit: int) -> None:
    if not isinstance(value, str) or not value.strip():
        _refuse(name, "must be a text that is not empty")
    if len(value) > limit:
        _refuse(name, f"takes at most {limit} characters, got {len(value)}")
    _check_unicode(name, value)


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(name, "holds half of a surrogate pair")


def _schema(value: object) -> str:
    """The JSON text of a schema that is small enough to be compiled."""
    if isinstance(value, str):
        if len(value) > MAX_SCHEMA_BYTES:
            _refuse("json", f"takes at most {MAX_SCHEMA_BYTES} bytes")
        try:
            value = json_text.loads(value)
        except (ValueError, RecursionError):
            _refuse("json", "must be a JSON schema, and this is no valid JSON")
    if not isinstance(value, Mapping):
        _refuse("json", f"must be a JSON schema, an object, got {type(value).__name__}")
    for count, (item, depth) in enumerate(_walk(value), start=1):
        if depth > MAX_SCHEMA_DEPTH:
            _refuse("json", f"takes at most {MAX_SCHEMA_DEPTH} levels of nesting")
        if count > MAX_SCHEMA_NODES:
            _refuse("json", f"takes at most {MAX_SCHEMA_NODES} values")
        if isinstance(item, Mapping):
            _check_lower_bounds(item)
    try:
        text = json_text.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
        size = len(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError):
        _refuse("json", "must be a JSON schema, and this has no form in JSON")
    if size > MAX_SCHEMA_BYTES:
        _refuse("json", f"takes at most {MAX_SCHEMA_BYTES} bytes, got {size}")
    return text


def _plain(value: object) -> object:
    """Mappings other than dict are objects too."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _check_lower_bounds(schema: Mapping[Any, Any]) -> None:
    for name in ("minItems", "minLength", "minProperties"):
        bound = schema.get(name)
        if isinstance(bound, (int, float)) and bound > MAX_LOWER_BOUND:
            _refuse("json", f"takes a {name} of at most {MAX_LOWER_BOUND}")


def _walk(value: object) -> Iterator[tuple[object, int]]:
    """Every value inside with its level, itself included; endless if it holds itself.

    Without recursion: what is too deep is told by the caller, not by the interpreter.
    """
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        yield item, depth
        members: Iterator[object] = iter(())
        if isinstance(item, Mapping):
            members = iter(item.values())
        elif isinstance(item, (list, tuple)):
            members = iter(item)
        pending.extend((member, depth + 1) for member in members)


def _refuse(name: str, why: str) -> NoReturn:
    raise RequestError(f"structured_outputs.{name} {why}", field=f"structured_outputs.{name}")
