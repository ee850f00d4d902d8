"""One measurement from beginning to end: find the server, plan, warm up, run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from chairlift.bench.serve.http_client import HttpClient, allow_open_connections
from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_plan import plan_requests
from chairlift.bench.serve.load_report import LoadReport
from chairlift.bench.serve.load_run import LoadRunner, Progress
from chairlift.bench.serve.server_contact import ServerContact
from chairlift.errors import ConfigError


def measure_server(
    config: LoadConfig,
    *,
    note: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] | None = None,
) -> LoadReport:
    """Run the load that was asked for.  `note` hears what is going on.

    Raises `ConfigError` and `ServerError` before anything is measured; requests that fail are
    part of the report.
    """
    return _run(_measure(config, note, on_progress))


def _run(measuring: Coroutine[Any, Any, LoadReport]) -> LoadReport:
    """On uvloop where it is installed: a chunk costs half as much there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(measuring)
    report: LoadReport = uvloop.run(measuring)
    return report


async def _measure(
    config: LoadConfig,
    note: Callable[[str], None],
    on_progress: Callable[[Progress], None] | None,
) -> LoadReport:
    run_id = f"bench-{uuid.uuid4().hex[:8]}"
    client = HttpClient(config.target, _headers(config), timeout_s=config.timeout)
    try:
        contact = ServerContact(client, config)
        await contact.wait_until_ready()
        model = await contact.model()
        form, form_note = await contact.prompt_form(model)
        if form_note is not None:
            note(form_note)
        requests = plan_requests(config, model, form)
        _check_open_files(config.max_concurrency or len(requests))
        if config.num_warmups:
            note(f"{config.num_warmups} requests to warm up")
            await contact.warm_up(model, form)
        note(f"{len(requests)} requests to {config.target.url}, {config.describe_load()}")
        runner = LoadRunner(
            client,
            config.target.path,
            requests,
            run_id=run_id,
            max_concurrency=config.max_concurrency,
            is_closed_loop=config.is_closed_loop,
            on_progress=on_progress,
        )
        run = await runner.run()
    finally:
        client.close()
    return LoadReport(config=config, model=model, prompt_form=form.name, run_id=run_id, run=run)


def _headers(config: LoadConfig) -> dict[str, str]:
    key = {} if config.api_key is None else {"authorization": f"Bearer {config.api_key}"}
    return {**key, **config.headers}


def _check_open_files(count: int) -> None:
    allowed = allow_open_connections(count)
    if allowed < count:
        raise ConfigError(
            f"this process may have {allowed} connections open, and the run may need {count}:"
            " raise the limit (ulimit -n) or set max_concurrency",
            field="max_concurrency",
        )
