"""POST /tokenize, POST /detokenize, GET /tokenizer_info."""

from __future__ import annotations

from functools import partial

from starlette.types import Receive, Scope, Send

from chairlift.server.errors import bad_request
from chairlift.server.exchange import exchange_of
from chairlift.server.json_body import BodyLimits
from chairlift.server.logprobs import token_name
from chairlift.server.long_lists import are_within
from chairlift.server.plain_answer import send_bytes, send_model
from chairlift.server.protocol.strict_model import parse
from chairlift.server.protocol.tokenize import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)
from chairlift.server.protocol.tools import tool_use_of
from chairlift.server.request_reading import book_unknown, read_body
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving


class Tokenize:
    """A prompt or a conversation as token ids."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "tokenize"
        _, served = serving.engine()
        limits = BodyLimits.of_one_text(serving.config.max_body_size, served.max_prompt_chars)
        understand = partial(parse, TokenizeRequest)
        async with read_body(serving, exchange, receive, limits, understand) as request:
            if (request.prompt is None) == (request.messages is None):
                raise bad_request("give either prompt or messages", param="prompt")
            if request.model is not None:
                served.check_name(request.model)
            book_unknown(serving, exchange, request)
            answer = await serving.in_text_thread(_tokenize, request, served)
        await send_bytes(send, 200, answer)


class Detokenize:
    """Token ids as text."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "detokenize"
        _, served = serving.engine()
        limits = BodyLimits(max_bytes=serving.config.max_body_size)
        understand = partial(parse, DetokenizeRequest)
        async with read_body(serving, exchange, receive, limits, understand) as request:
            if request.model is not None:
                served.check_name(request.model)
            book_unknown(serving, exchange, request)
            answer = await serving.in_text_thread(_detokenize, request.tokens, served)
        await send_bytes(send, 200, answer)


class GetTokenizerInfo:
    """What a client needs to count tokens itself."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, served = self._serving.engine()
        tokenizer = served.tokenizer
        info = TokenizerInfo(
            tokenizer_class=type(tokenizer).__name__,
            vocab_size=served.vocab_size,
            model_max_length=served.max_model_len,
            bos_token=tokenizer.bos_token or None,
            bos_token_id=tokenizer.bos_id,
            eos_token=tokenizer.eos_token or None,
            eos_token_id=tokenizer.eos_id,
            eos_token_ids=sorted(tokenizer.eos_ids),
            chat_template=served.chat_template.source if served.chat_template else None,
        )
        await send_model(send, info)


def _tokenize(request: TokenizeRequest, served: ServedModel) -> bytes:
    """The answer as JSON: it may hold as many small objects as the prompt has tokens."""
    if request.messages is not None:
        _, ids = served.encode_messages(
            request.messages,
            use=tool_use_of(request.tools, None, is_parallel=True),
            add_generation_prompt=request.add_generation_prompt,
        )
    else:
        text = request.prompt or ""
        served.check_length(text)
        ids = served.tokenizer.encode(text, add_special_tokens=request.add_special_tokens)
    names = [token_name(served.tokenizer, i) for i in ids] if request.return_token_strs else None
    answer = TokenizeAnswer(
        count=len(ids), max_model_len=served.max_model_len, tokens=ids, token_strs=names
    )
    return answer.model_dump_json().encode("utf-8")


def _detokenize(ids: list[int], served: ServedModel) -> bytes:
    if not are_within(ids, 0, served.vocab_size - 1):
        raise bad_request(
            f"tokens must be below {served.vocab_size}: one is out of vocabulary", param="tokens"
        )
    text = served.tokenizer.decode(ids, skip_special_tokens=False)
    return DetokenizeAnswer(prompt=text).model_dump_json().encode("utf-8")
