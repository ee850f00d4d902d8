"""From what a caller says to what the scheduler takes: tokens checked, options resolved.

Everything that can be wrong with a request is found here, before anything is queued, and named by
its field.  A prompt asked for n times becomes n requests: the first is prefilled, the others fork
its blocks.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.request import Request
from chairlift.errors import ContextLengthError, RequestError
from chairlift.grammar.grammar_compiler import GrammarCompiler
from chairlift.grammar.token_matcher import CompiledGrammar
from chairlift.pooling_params import DEFAULT_POOLING, PoolingParams, PoolingType
from chairlift.sampling_params import SamplingParams
from chairlift.structured_outputs import StructuredOutputsParams
from chairlift.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping with "prompt" or "prompt_token_ids"."""

_NO_SAMPLING = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
"""Of a request that needs no token."""
_MAX_CHARACTERS_PER_TOKEN = 512
"""Where the tokenizer does not know its longest token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedInput:
    """One prompt, ready for the scheduler."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    children: tuple[Request, ...]
    """One per completion; one for an embedding."""


class InputProcessor:
    """Checks and converts requests for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        defaults: SamplingParams,
        pooling_type: PoolingType = DEFAULT_POOLING,
        seed: int | None = None,
    ) -> None:
        """`defaults` and `pooling_type` are for requests that do not say how they want it."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._defaults = defaults
        self._pooling_type: PoolingType = pooling_type
        self._random = random.Random(seed) if seed is not None else random.SystemRandom()
        self._counter = itertools.count()
        self._grammars = GrammarCompiler(tokenizer, vocab_size)

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        arrival_time: float = 0.0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> ProcessedInput:
        """Raises `RequestError`, naming the field."""
        params = self._defaults if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params must be SamplingParams, got {type(params).__name__}",
                field="sampling_params",
            )
        _check_labels(request_id, priority, cache_salt, tenant)
        text, token_ids = self._tokens(prompt)
        self._check_tokens(token_ids, self._max_model_len - 1)
        self._check_vocabulary(params)
        request_id = request_id if request_id is not None else str(next(self._counter))
        room = self._max_model_len - len(token_ids)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos or params.structured_outputs is not None:
            stop_ids |= {i for i in self._tokenizer.eos_ids if i < self._vocab_size}
        bad_words = self._bad_word_ids(params)
        grammar = None
        if params.structured_outputs is not None:
            grammar = self.compile_grammar(params.structured_outputs)
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        children = tuple(
            Request(
                child_id(request_id, index, params.n),
                token_ids,
                max_tokens,
                stop_token_ids=stop_ids,
                priority=priority,
                arrival_time=arrival_time,
                fork_of=child_id(request_id, 0, params.n) if index else None,
                cache_salt=cache_salt,
                tenant=tenant,
                use_prefix_cache=params.prompt_logprobs is None,
                sampling_params=params,
                seed=seed,
                choice_index=index,
                bad_word_ids=bad_words,
                grammar=grammar,
            )
            for index in range(params.n)
        )
        return ProcessedInput(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            children=children,
        )

    def process_embedding(
        self,
        prompt: Prompt,
        params: PoolingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        arrival_time: float = 0.0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> ProcessedInput:
        """A prompt of which the vector is wanted and no token.  Raises `RequestError`."""
        params = PoolingParams() if params is None else params
        if not isinstance(params, PoolingParams):
            raise RequestError(
                f"pooling_params must be PoolingParams, got {type(params).__name__}",
                field="pooling_params",
            )
        _check_labels(request_id, priority, cache_salt, tenant)
        text, token_ids = self._tokens(prompt)
        self._check_tokens(token_ids, self._max_model_len)
        request_id = request_id if request_id is not None else str(next(self._counter))
        if params.pooling_type is None:
            params = dataclasses.replace(params, pooling_type=self._pooling_type)
        child = Request(
            request_id,
            token_ids,
            max_tokens=0,
            priority=priority,
            arrival_time=arrival_time,
            cache_salt=cache_salt,
            tenant=tenant,
            use_prefix_cache=params.pooling_type != "mean",
            sampling_params=_NO_SAMPLING,
            pooling_params=params,
        )
        return ProcessedInput(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            params=_NO_SAMPLING,
            children=(child,),
        )

    def has_compiled(self, asked: StructuredOutputsParams) -> bool:
        """Whether compiling it again would take no time."""
        return self._grammars.has(asked)

    def compile_grammar(self, asked: StructuredOutputsParams) -> CompiledGrammar:
        """May take a second, once; raises `RequestError`, naming the field.  Thread-safe."""
        return self._grammars.compile(asked)

    def _tokens(self, prompt: object) -> tuple[str | None, tuple[int, ...]]:
        if isinstance(prompt, Mapping):
            return self._tokens_of_mapping(prompt)
        if isinstance(prompt, str):
            return self._tokens_of_text(prompt)
        if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
            return None, tuple(prompt)
        raise RequestError(
            f"a prompt must be a text, a list of token ids or a mapping, got"
            f" {type(prompt).__name__}",
            field="prompt",
        )

    @property
    def max_prompt_chars(self) -> int:
        """A longer text cannot fit the context: it is refused before it is tokenized."""
        per_token = self._tokenizer.max_bytes_per_token or _MAX_CHARACTERS_PER_TOKEN
        return self._max_model_len * per_token

    def check_length(self, text: str) -> None:
        """Raises `ContextLengthError` for a text that is too long whatever its tokens are."""
        if len(text) > self.max_prompt_chars:
            raise ContextLengthError(
                f"the prompt of {len(text)} characters cannot fit {self._max_model_len} tokens",
                field="prompt",
            )

    def _tokens_of_text(self, text: str) -> tuple[str, tuple[int, ...]]:
        self.check_length(text)
        return text, tuple(self._tokenizer.encode(text))

    def _tokens_of_mapping(self, prompt: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown:
            raise RequestError(
                f"a prompt has no key {sorted(unknown, key=str)[0]!r}", field="prompt"
            )
        token_ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
        if token_ids is None and text is None:
            raise RequestError(
                "a prompt mapping needs 'prompt' or 'prompt_token_ids'", field="prompt"
            )
        if text is not None and not isinstance(text, str):
            raise RequestError("'prompt' must be a text", field="prompt")
        if token_ids is None:
            return self._tokens_of_text(text or "")
        if isinstance(token_ids, (str, bytes)) or not isinstance(token_ids, Sequence):
            raise RequestError("'prompt_token_ids' must be a list", field="prompt_token_ids")
        return text, tuple(token_ids)

    def _check_tokens(self, token_ids: tuple[int, ...], max_tokens: int) -> None:
        if not token_ids:
            raise RequestError("the prompt is empty", field="prompt")
        if len(token_ids) > max_tokens:
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens; with max_model_len"
                f" {self._max_model_len} it may have {max_tokens}",
                field="prompt",
            )
        are_integers = set(map(type, token_ids)) == {int}
        if are_integers and min(token_ids) >= 0 and max(token_ids) < self._vocab_size:
            return
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise RequestError(
                    f"prompt_token_ids must be integers, got {token_id!r}",
                    field="prompt_token_ids",
                )
            self._check_id(token_id, "prompt_token_ids")

    def _check_vocabulary(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token_id in getattr(params, name) or ():
                self._check_id(token_id, name)

    def _check_id(self, token_id: int, field: str) -> None:
        if not 0 <= token_id < self._vocab_size:
            raise RequestError(
                f"{field} has {token_id}, outside the vocabulary of {self._vocab_size} tokens",
                field=field,
            )

    def _bad_word_ids(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Each word as it is written at the start of a text, and after a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            for text in (word, " " + word.lstrip()):
                try:
                    ids = self._tokenizer.encode(text, add_special_tokens=False)
                except RequestError as error:
                    raise RequestError(f"bad_words: {error}", field="bad_words") from None
                found[tuple(ids)] = None
        return tuple(ids for ids in found if ids)


def _check_labels(request_id: object, priority: object, cache_salt: object, tenant: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"priority must be an integer, got {priority!r}", field="priority")
    texts = {"request_id": request_id or "", "cache_salt": cache_salt, "tenant": tenant}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise RequestError(f"{name} must be a text, got {value!r}", field=name)


def child_id(request_id: str, index: int, n: int) -> str:
    """The scheduler's name for one completion of a request."""
    return request_id if n == 1 else f"{request_id}#{index}"
