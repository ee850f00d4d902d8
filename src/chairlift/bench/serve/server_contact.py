"""What must be known of a server before it is measured: that it is there, its model, how it takes
prompts, and how many tokens it makes of words.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from chairlift.bench.serve.event_stream import EventStreamError
from chairlift.bench.serve.http_answer import AnswerHead, HttpError
from chairlift.bench.serve.http_client import HttpClient
from chairlift.bench.serve.http_connection import ConnectionLostError
from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_plan import warmup_bodies
from chairlift.bench.serve.load_run import send
from chairlift.bench.serve.planned_request import encode, merged, request_body
from chairlift.bench.serve.prompt_form import (
    CALIBRATION_WORDS,
    PromptForm,
    TokenPrompts,
    calibration_text,
    fit_text_prompts,
)
from chairlift.errors import ChairliftError, ConfigError

POLL_INTERVAL_S = 0.25
PROBE_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 16 * 1024 * 1024


class ServerError(ChairliftError):
    """The server is not there, or refuses what is to be measured."""


class PlainAnswer:
    """A `Receiver` for an answer that is JSON."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.has_all = False

    def on_head(self, head: AnswerHead, now_s: float) -> None:
        self.status = head.status

    def on_body(self, data: bytes, now_s: float) -> None:
        self.body += data
        if len(self.body) > _MAX_BODY_BYTES:
            raise HttpError(f"an answer is longer than {_MAX_BODY_BYTES} bytes")

    def content(self) -> dict[str, Any]:
        """The JSON object in an answer of status 200; otherwise an empty one."""
        try:
            found = json.loads(self.body) if self.status == 200 else None
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class ServerContact:
    """Asks the questions, one after the other."""

    client: HttpClient
    config: LoadConfig

    async def wait_until_ready(self) -> None:
        """Poll for up to `wait_ready` seconds.  Raises `ServerError`.

        A server is ready when /health says so; one without /health, when it lists its models.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.config.wait_ready
        while True:
            problem = await self._problem()
            if problem is None:
                return
            if loop.time() + POLL_INTERVAL_S > deadline_s:
                raise ServerError(
                    f"no server is ready at {self.config.target.url}: {problem};"
                    " --wait-ready waits for one"
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _problem(self) -> str | None:
        for path in ("/health", "/v1/models"):
            answer = PlainAnswer()
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    await self.client.get(path, answer)
            except TimeoutError:
                return f"{path} takes too long"
            except (OSError, HttpError, ConnectionLostError) as error:
                return str(error)
            if answer.status == 200:
                return None
            if answer.status not in (404, 405):
                return f"{path} answers {answer.status}"
        return None  # neither is there: the first request will show

    async def model(self) -> str:
        """The one asked for, or the first that the server lists.  Raises `ConfigError`."""
        if self.config.model is not None:
            return self.config.model
        listed = (await self._ask("GET", "/v1/models")).get("data")
        if isinstance(listed, list) and listed and isinstance(listed[0], dict):
            return str(listed[0].get("id"))
        raise ConfigError("the server lists no model; name one with --model", field="model")

    async def prompt_form(self, model: str) -> tuple[PromptForm, str | None]:
        """How prompts are sent, with a note if that is not what "auto" means at best.

        Has the server answer a request of that form.  Raises `ServerError`.
        """
        config = self.config
        takes_text = config.target.is_chat or config.dataset_name in ("sharegpt", "custom")
        note = None
        if config.prompt_form == "ids" or (config.prompt_form == "auto" and not takes_text):
            form = TokenPrompts(*config.token_id_range)
            refusal = await self._try(model, form)
            if refusal is None:
                return form, None
            if config.prompt_form == "ids" or not refusal.startswith("http_4"):
                raise ServerError(f"the server does not answer a first request: {refusal}")
            note = f"prompts are text: the server refuses token ids ({refusal})"
        text_form = fit_text_prompts([await self._count(model, n) for n in CALIBRATION_WORDS])
        refusal = await self._try(model, text_form)
        if refusal is not None:
            raise ServerError(f"the server does not answer a first request: {refusal}")
        return text_form, note

    async def warm_up(self, model: str, form: PromptForm) -> None:
        """Send the requests that nobody measures, as many at once as the run may.

        Raises `ServerError`.
        """
        bodies = iter(warmup_bodies(self.config, model, form, self.config.num_warmups))

        async def client() -> None:
            for body in bodies:
                _, failure = await send(self.client, self.config.target.path, body, "warmup")
                if failure is not None:
                    raise ServerError(f"a warm-up failed: {failure.cause}: {failure.message}")

        limit = self.config.max_concurrency or self.config.num_warmups
        count = min(limit, self.config.num_warmups)
        for result in await asyncio.gather(
            *(client() for _ in range(count)), return_exceptions=True
        ):
            if isinstance(result, BaseException):
                raise result

    async def _try(self, model: str, form: PromptForm) -> str | None:
        """Why the server does not answer a small request of this form; None if it does."""
        body = _small(warmup_bodies(self.config, model, form, 1)[0])
        _, failure = await send(self.client, self.config.target.path, body, "first")
        return None if failure is None else f"{failure.cause}: {failure.message}"

    async def _count(self, model: str, num_words: int) -> int:
        """Tokens of a request with that many words, a chat template's included."""
        text = calibration_text(num_words)
        asked: dict[str, Any] = {"model": model}
        if self.config.target.is_chat:
            asked["messages"] = [{"role": "user", "content": text}]
        else:
            asked["prompt"] = text
        count = (await self._ask("POST", "/tokenize", encode(asked))).get("count")
        if isinstance(count, int) and count > 0:
            return count
        body = _small(request_body(self.config, model, text, 1))
        answer, failure = await send(self.client, self.config.target.path, body, "calibration")
        if failure is not None:
            raise ServerError(
                f"the server does not answer a first request: {failure.cause}: {failure.message}"
            )
        counted = (answer.usage or {}).get("prompt_tokens")
        return counted if isinstance(counted, int) and counted > 0 else num_words

    async def _ask(self, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        """JSON from a path that may not be there: then an empty object."""
        answer = PlainAnswer()
        try:
            if method == "GET":
                await self.client.get(path, answer)
            else:
                await self.client.post(path, body, answer)
        except (OSError, HttpError, EventStreamError, ConnectionLostError):
            return {}
        return answer.content()


def _small(body: bytes) -> bytes:
    """The same request for one token."""
    fields = json.loads(body)
    limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in fields}
    return encode(merged(fields, limits))
