"""Spans of requests, as OpenTelemetry's own exporter for tests sees them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from chairlift.errors import ConfigError
from chairlift.server.server_config import ServerConfig
from chairlift.server.tracing import SpanTracer, open_tracer
from http_harness import until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_phases_are_children_of_the_clients_span(serve: Any) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra chairlift[otel]")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with serve(serving_options={"tracer": SpanTracer(provider)}) as server:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        server.complete(max_tokens=4, ignore_eos=True, headers=headers)
        server.get("/health")
        until(lambda: len(exporter.get_finished_spans()) == 4)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"POST completions", "queue", "prefill", "decode"}
    whole = spans.pop("POST completions")
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert whole.attributes["gen_ai.usage.output_tokens"] == 4
    assert all(span.parent.span_id == whole.context.span_id for span in spans.values())
    assert spans["queue"].end_time == spans["prefill"].start_time
    assert spans["prefill"].end_time == spans["decode"].start_time
    assert whole.start_time <= spans["queue"].start_time
    assert spans["decode"].end_time <= whole.end_time


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    config = ServerConfig(otlp_traces_endpoint="http://localhost:4318/v1/traces")
    with pytest.raises(ConfigError, match=r"chairlift\[otel\]"):
        open_tracer(config)


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://host/x", "http://", "http://[x"])
def test_endpoint_must_be_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_traces_endpoint"):
        ServerConfig(otlp_traces_endpoint=url)
