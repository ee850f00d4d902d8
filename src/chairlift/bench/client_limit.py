"""Says so when it was the client, and not the engine, that kept the batch small."""

from __future__ import annotations

from chairlift.bench.policy_run import PolicyRun

_MOST = 0.9


def client_limit_note(run: PolicyRun, concurrency: int) -> str | None:
    """One line if seats stayed empty because nobody else had asked; None otherwise.

    Static and dynamic batches keep requests out by design, so only runs in which requests would
    have been admitted count.
    """
    if concurrency >= run.num_seats:
        return None
    busy_s = sum(record.duration_s for record in run.records)
    open_s = sum(r.duration_s for r in run.records if r.limit == "arrivals" and not r.num_waiting)
    if open_s < _MOST * busy_s:
        return None
    seen = f"concurrency {concurrency}: {run.mean_running:.1f} requests ran on average"
    if concurrency == 1:
        return f"{seen}; the client sends one at a time: no engine setting helps"
    return f"{seen}, with seats for {run.num_seats}; the client was the limit: send more at once"
