"""OpenTelemetry spans of requests for tokens: queue, prefill and decode under one of the whole.

Off unless an endpoint is given.  A span is made when its request is over, from times that were
taken anyhow, so that a request under way costs nothing more; sending happens in a thread of
OpenTelemetry's.  A client's `traceparent` header becomes the parent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chairlift._version import __version__
from chairlift.errors import ConfigError
from chairlift.outputs import RequestMetrics, RequestOutput
from chairlift.server.exchange import Exchange
from chairlift.server.server_config import ServerConfig

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span


class Tracer:
    """Traces nothing."""

    def trace(self, exchange: Exchange) -> None:
        """A request is over."""

    def close(self) -> None:
        """Send what is left."""


class SpanTracer(Tracer):
    """Makes spans with OpenTelemetry."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("chairlift", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def trace(self, exchange: Exchange) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        if not exchange.endpoint:
            return
        offset_s = time.time() - time.monotonic()  # the engine's clock is monotonic
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.endpoint}",
            context=self._parent(exchange),
            kind=SpanKind.SERVER,
            start_time=_ns(exchange.started_s + offset_s),
            attributes={
                "http.request.method": exchange.method,
                "url.path": exchange.path[:200],
                "http.response.status_code": exchange.status,
                "gen_ai.request.id": exchange.request_id,
            },
        )
        if exchange.error_code is not None:
            span.set_attribute("error.type", exchange.error_code)
        if exchange.status >= 500:
            span.set_status(StatusCode.ERROR)
        for output in exchange.outputs:
            self._trace_phases(span, output, offset_s)
        span.set_attribute(
            "gen_ai.usage.input_tokens",
            sum(len(output.prompt_token_ids) for output in exchange.outputs),
        )
        span.set_attribute(
            "gen_ai.usage.output_tokens",
            sum(len(item.token_ids) for output in exchange.outputs for item in output.outputs),
        )
        span.end(_ns(time.time()))

    def close(self) -> None:
        self._provider.shutdown()

    def _parent(self, exchange: Exchange) -> Context:
        names = (b"traceparent", b"tracestate")
        headers = exchange.headers
        return self._propagator.extract(
            {name.decode(): headers[name].decode("latin-1") for name in names if name in headers}
        )

    def _trace_phases(self, parent: Span, output: RequestOutput, offset_s: float) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(parent)
        for name, start_s, end_s in _phases(output.metrics):
            span = self._tracer.start_span(
                name,
                context=context,
                start_time=_ns(start_s + offset_s),
                attributes={
                    "chairlift.cached_tokens": output.num_cached_tokens,
                    "chairlift.preemptions": output.metrics.num_preemptions,
                },
            )
            span.end(_ns(end_s + offset_s))


def open_tracer(config: ServerConfig) -> Tracer:
    """What the options ask for.  Raises `ConfigError` if it is not installed."""
    if config.otlp_traces_endpoint is None:
        return Tracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "otlp_traces_endpoint needs OpenTelemetry: pip install 'chairlift[otel]'",
            field="otlp_traces_endpoint",
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "chairlift"}))
    exporter = OTLPSpanExporter(endpoint=config.otlp_traces_endpoint)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return SpanTracer(provider)


def _phases(metrics: RequestMetrics) -> list[tuple[str, float, float]]:
    """(name, start, end) of those that came to their end."""
    times = (
        metrics.arrival_time,
        metrics.first_scheduled_time,
        metrics.first_token_time,
        metrics.last_token_time,
    )
    phases = []
    for name, start_s, end_s in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
        if start_s is not None and end_s is not None:
            phases.append((name, start_s, end_s))
    return phases


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
