"""Records of requests with times that are easy to add up."""

from __future__ import annotations

from typing import Any

from chairlift.bench.serve.client_load import ClientLoad
from chairlift.bench.serve.distribution import distribution_of
from chairlift.bench.serve.failure import Failure
from chairlift.bench.serve.load_run import LoadRun
from chairlift.bench.serve.request_record import RequestRecord


def a_record(
    index: int = 0,
    start_s: float = 0.0,
    *,
    first_s: float = 1.0,
    gaps_s: tuple[float, ...] = (0.5, 0.5),
    **others: Any,
) -> RequestRecord:
    """First token after `first_s`, then one after each gap; ends with the last."""
    times = [start_s + first_s]
    for gap_s in gaps_s:
        times.append(times[-1] + gap_s)
    fields = {
        "intended_s": start_s,
        "sent_s": start_s,
        "finished_s": times[-1],
        "first_token_s": times[0],
        "last_token_s": times[-1],
        "text_times_s": times,
        "num_prompt_tokens": 10,
        "num_output_tokens": len(times),
        "num_output_tokens_asked": len(times),
        "is_counted_by_server": True,
    }
    return RequestRecord(index=index, **{**fields, **others})


def a_failure(
    index: int, start_s: float, end_s: float, cause: str = "http_429", **others: Any
) -> RequestRecord:
    return RequestRecord(
        index=index,
        intended_s=start_s,
        sent_s=start_s,
        finished_s=end_s,
        failure=Failure(cause, f"message {index}"),
        **others,
    )


def a_client(
    *, duration_s: float = 10.0, cpu_s: float = 0.1, lags_ms: tuple[float, ...] = (1.0,)
) -> ClientLoad:
    return ClientLoad(
        duration_s=duration_s, cpu_s=cpu_s, waited_s=0.0, lag_ms=distribution_of(lags_ms)
    )


def a_run(*records: RequestRecord, client: ClientLoad | None = None) -> LoadRun:
    return LoadRun(
        records=list(records),
        duration_s=max(record.finished_s for record in records),
        client=client or a_client(),
    )
