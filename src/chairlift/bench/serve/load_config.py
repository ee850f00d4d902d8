"""What `chairlift bench serve` is asked to do, in the names of vLLM's `bench serve`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from chairlift.bench.serve.endpoint import Endpoint, parse_endpoint
from chairlift.bench.serve.lengths import Lengths, parse_lengths
from chairlift.bench.serve.service_level import (
    LatencyName,
    ServiceLevel,
    parse_service_level,
)
from chairlift.errors import ConfigError

DatasetName = Literal["random", "sharegpt", "custom", "timed_trace"]
PromptFormName = Literal["auto", "ids", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """Raises `ConfigError`, naming the field, on a bad value."""

    base_url: str = "http://127.0.0.1:8000"
    """The server's address, with or without /v1 at its end."""
    endpoint: str = "/v1/completions"
    """What is measured: /v1/completions or /v1/chat/completions."""
    model: str | None = None
    """The model's name at the server. Default: the first that /v1/models lists."""
    api_key: str | None = None
    """Sent as bearer token. Default: the environment variable OPENAI_API_KEY."""
    header: tuple[str, ...] = ()
    """NAME=VALUE, sent with every request; may be repeated."""
    num_prompts: int | None = None
    """Requests to send. Default: 1000, or what a dataset file has if that is less."""
    request_rate: float | None = None
    """Requests a second; "inf" sends all at once, or as fast as max-concurrency lets them.
    Default: inf, and the times of the file for a timed_trace."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of gaps: 1 is a Poisson process, below 1 comes in bursts."""
    max_concurrency: int | None = None
    """Requests in flight at most. Without a request rate: so many clients, each of which sends
    its next request when it has its answer. Default: no limit."""
    dataset_name: DatasetName = "random"
    """random: made up, of exact lengths. sharegpt: conversations. custom: JSON lines with a prompt.
    timed_trace: times and lengths."""
    dataset_path: str | None = None
    """The file of a dataset other than random."""
    input_len: str = "1024"
    """Prompt tokens of random requests: a number, LOW-HIGH, or
    lognormal:MEDIAN,SIGMA[,LOW-HIGH]."""
    output_len: str | None = None
    """Output tokens, in the same forms. Default: 128, or what the dataset says."""
    shared_prefix_len: int = 0
    """Tokens that come before the prompt of a random request and that requests share."""
    num_prefixes: int = 1
    """How many different shared prefixes there are."""
    prompt_form: PromptFormName = "auto"
    """ids sends lists of token ids, text sends words of about the length. Default: auto, which is
    ids for /v1/completions where the server takes them, otherwise text."""
    token_ids: str = "1000-30000"
    """The range of ids that random prompts are made of; it must lie within the vocabulary."""
    timed_trace_sec_multiplier: float = 1.0
    """Seconds per unit of a trace's numeric timestamps: 0.001 for milliseconds."""
    timed_trace_chunk_hash_size: int = 512
    """Tokens that one of a trace's hash_ids stands for."""
    ignore_eos: bool = False
    """Ask the server to generate the full output length (vLLM, llama.cpp and Chairlift can)."""
    temperature: float = 0.0
    """Of sampling."""
    extra_body: str | None = None
    """A JSON object whose fields are put into every request; null takes a field out."""
    seed: int = 0
    """Of prompts, lengths and arrivals: the same seed sends the same bytes."""
    num_warmups: int = 0
    """Requests to send before the measurement."""
    goodput: tuple[str, ...] = ()
    """Bounds of a good request in ms: ttft:500 tpot:50 e2el:3000."""
    percentile_metrics: str = "ttft,tpot,itl,e2el"
    """The latencies to report."""
    metric_percentiles: str = "90,99"
    """The percentiles to report."""
    timeout: float = 600.0
    """Seconds after which a request has failed."""
    wait_ready: float = 0.0
    """Seconds to wait for the server to be ready."""

    def __post_init__(self) -> None:
        self._check_choice("dataset_name", get_args(DatasetName))
        self._check_choice("prompt_form", get_args(PromptFormName))
        for name in ("num_prompts", "max_concurrency", "num_prefixes"):
            self._check_least(name, 1)
        for name in ("shared_prefix_len", "num_warmups", "temperature", "wait_ready", "seed"):
            self._check_least(name, 0)
        for name in ("timed_trace_sec_multiplier", "burstiness", "timeout", "request_rate"):
            self._check_positive(name)
        self._check_least("timed_trace_chunk_hash_size", 1)
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError("api_key must be printable ASCII", field="api_key")
        self._check_together()
        # Each of these raises where its text makes no sense.
        _ = self.target, self.input_lengths, self.output_lengths, self.token_id_range
        _ = self.headers, self.extra_fields, self.service_level, self.latencies, self.percentiles

    @property
    def target(self) -> Endpoint:
        return parse_endpoint(self.base_url, self.endpoint)

    @property
    def input_lengths(self) -> Lengths:
        return parse_lengths(self.input_len, "input_len")

    @property
    def output_lengths(self) -> Lengths | None:
        """None: what the dataset says."""
        if self.output_len is None:
            return None
        return parse_lengths(self.output_len, "output_len")

    @property
    def token_id_range(self) -> tuple[int, int]:
        lengths = parse_lengths(self.token_ids, "token_ids")
        if lengths.median is not None or lengths.low == lengths.high:
            raise ConfigError(
                f"token_ids takes LOW-HIGH, got {self.token_ids!r}", field="token_ids"
            )
        return lengths.low, lengths.high

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        for text in self.header:
            name, equals, value = text.partition("=")
            is_plain = (text.isascii() and text.isprintable()) and " " not in name
            if not equals or not name or ":" in name or not is_plain:
                raise ConfigError(f"header takes NAME=VALUE, got {text!r}", field="header")
            headers[name.lower()] = value
        return headers

    @property
    def extra_fields(self) -> dict[str, Any]:
        try:
            fields = json.loads(self.extra_body or "{}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"extra_body is not JSON: {error}", field="extra_body") from None
        if not isinstance(fields, dict):
            raise ConfigError("extra_body takes a JSON object", field="extra_body")
        return fields

    @property
    def service_level(self) -> ServiceLevel | None:
        return parse_service_level(self.goodput)

    @property
    def latencies(self) -> tuple[LatencyName, ...]:
        names = tuple(name.strip() for name in self.percentile_metrics.split(","))
        if set(names) - set(get_args(LatencyName)):
            raise ConfigError(
                f"percentile_metrics takes names out of {', '.join(get_args(LatencyName))},"
                f" got {self.percentile_metrics!r}",
                field="percentile_metrics",
            )
        return tuple(name for name in get_args(LatencyName) if name in names)

    @property
    def percentiles(self) -> tuple[float, ...]:
        try:
            numbers = sorted({float(part) for part in self.metric_percentiles.split(",")})
        except ValueError:
            numbers = [-1.0]
        if not all(0.0 <= number <= 100.0 for number in numbers):
            raise ConfigError(
                f"metric_percentiles takes numbers from 0 to 100 such as 90,99, got"
                f" {self.metric_percentiles!r}",
                field="metric_percentiles",
            )
        return tuple(numbers)

    @property
    def is_self_timed(self) -> bool:
        """Requests come at the times of a trace."""
        return self.dataset_name == "timed_trace" and self.request_rate is None

    @property
    def is_closed_loop(self) -> bool:
        """A request is sent when another one has ended; nothing else says when."""
        has_rate = self.request_rate is not None and not math.isinf(self.request_rate)
        return self.max_concurrency is not None and not (has_rate or self.is_self_timed)

    def describe_load(self) -> str:
        """For a report: "closed loop, 32 clients"."""
        if self.is_closed_loop:
            return f"closed loop, {self.max_concurrency} clients"
        if self.is_self_timed:
            text = "open loop, times of the trace"
        elif self.request_rate is None or math.isinf(self.request_rate):
            text = "open loop, all at once"
        else:
            text = f"open loop, {self.request_rate:g} requests/s, burstiness {self.burstiness:g}"
        at_most = self.max_concurrency
        return text if at_most is None else f"{text}, at most {at_most} in flight"

    def _check_together(self) -> None:
        if (self.dataset_name == "random") != (self.dataset_path is None):
            problem = (
                f"dataset_path is needed for {self.dataset_name}"
                if self.dataset_path is None
                else "dataset_path goes with a dataset_name other than random"
            )
            raise ConfigError(problem, field="dataset_path")
        if self.dataset_name != "random" and self.shared_prefix_len:
            raise ConfigError(
                "shared_prefix_len goes with random prompts", field="shared_prefix_len"
            )
        if self.num_prefixes > 1 and not self.shared_prefix_len:
            raise ConfigError("num_prefixes needs shared_prefix_len", field="num_prefixes")
        if self.prompt_form == "ids" and (
            self.target.is_chat or self.dataset_name in ("sharegpt", "custom")
        ):
            raise ConfigError(
                "prompt_form ids needs /v1/completions and made-up prompts", field="prompt_form"
            )
        if self.burstiness != 1.0 and (
            self.is_closed_loop or self.is_self_timed or self.request_rate in (None, math.inf)
        ):
            raise ConfigError("burstiness needs a request_rate", field="burstiness")

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(
                f"{name} must be one of {', '.join(choices)}, got {value!r}", field=name
            )

    def _check_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not (value >= least and math.isfinite(value)):
            raise ConfigError(f"{name} must be at least {least}, got {value}", field=name)

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        may_be_infinite = name == "request_rate"
        if value is None or (value > 0.0 and (math.isfinite(value) or may_be_infinite)):
            return
        raise ConfigError(f"{name} must be above 0, got {value}", field=name)
