"""What a reader of the figures should know before believing them."""

from __future__ import annotations

from collections.abc import Iterator

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_metrics import LoadMetrics

LONG_DRAIN_SHARE = 0.25
FULL_SHARE = 0.95
HELD_BACK_MS = 100.0
MUCH_CACHED_SHARE = 0.5
"""A chat template that all requests share is less, but for very short prompts."""


def notes_about(config: LoadConfig, metrics: LoadMetrics) -> list[str]:
    """One line each, the client's part first."""
    return [
        *_client_notes(config, metrics),
        *_workload_notes(config, metrics),
    ]


def _client_notes(config: LoadConfig, metrics: LoadMetrics) -> Iterator[str]:
    client = metrics.run.client.note()
    if client is not None:
        yield client
    in_flight, answering = metrics.in_flight.mean, metrics.answering.mean
    at_most = config.max_concurrency
    if config.is_closed_loop and at_most == 1:
        yield (
            f"the client was the limit: concurrency 1: {in_flight:.1f} requests ran on average;"
            " it sends one at a time, and no setting of the server helps"
        )
    elif config.is_closed_loop and answering >= FULL_SHARE * in_flight:
        yield (
            f"the client may have been the limit: nobody waited, all {in_flight:.1f} requests in"
            " flight were being answered; a higher --max-concurrency may give more"
        )
    elif at_most is not None and not config.is_closed_loop:
        held_ms = metrics.held_back_ms.percentile(90)
        if held_ms >= HELD_BACK_MS:
            yield (
                f"the client was a limit: --max-concurrency {at_most} held requests back, for"
                f" {held_ms:.0f} ms (p90), which their latencies include"
            )


def _workload_notes(config: LoadConfig, metrics: LoadMetrics) -> Iterator[str]:
    if metrics.drain_share > LONG_DRAIN_SHARE and not _is_burst(config):
        yield (
            f"the last {metrics.drain_share:.0%} of the run had nothing more to send, so that the"
            " server was not fully loaded; use more prompts"
        )
    if metrics.token_count_source != "usage" and metrics.completed:
        yield "the server sent no usage: each chunk with text was counted as one output token"
    cached = metrics.cached_share
    if cached is not None and cached > MUCH_CACHED_SHARE and not config.shared_prefix_len:
        yield (
            f"{cached:.0%} of the prompt tokens came from the server's prefix cache: it may have"
            " seen these prompts before; another --seed makes new ones"
        )
    asked = metrics.num_output_tokens_asked
    if metrics.completed and metrics.total_output_tokens < 0.95 * asked:
        yield (
            f"answers were shorter than asked for ({metrics.total_output_tokens} of {asked}"
            " tokens): the model ended them; --ignore-eos makes lengths exact"
        )


def _is_burst(config: LoadConfig) -> bool:
    """All is sent at the start: then everything is draining."""
    return not config.is_closed_loop and config.describe_load().startswith("open loop, all")
