"""What the server tells those who measure, and the place for a route of theirs."""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from chairlift.events import StepRecord
from chairlift.outputs import RequestOutput
from chairlift.server.app import create_app
from chairlift.server.exchange import Exchange
from chairlift.server.metrics_hooks import MetricsHooks
from chairlift.server.plain_answer import send_bytes
from chairlift.server.serving import Serving
from http_harness import until


class Recorder(MetricsHooks):
    """Remembers everything."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.rejected: list[tuple[str, str]] = []
        self.finished: list[Exchange] = []
        self.outputs: list[list[RequestOutput]] = []
        """Of each that has finished: an exchange lets go of them afterwards."""
        self.steps: list[StepRecord] = []
        self.num_rebuilds = 0

    def request_received(self, exchange: Exchange) -> None:
        self.received.append(exchange.endpoint)

    def request_rejected(self, exchange: Exchange, cause: str) -> None:
        self.rejected.append((exchange.endpoint, cause))

    def request_finished(self, exchange: Exchange) -> None:
        self.outputs.append(list(exchange.outputs))
        self.finished.append(exchange)

    def step_done(self, record: StepRecord) -> None:
        self.steps.append(record)

    def engine_rebuilt(self) -> None:
        self.num_rebuilds += 1


def test_requests_and_steps_are_told(serve: Any) -> None:
    hooks = Recorder()
    with serve(serving_options={"metrics": hooks}) as server:
        server.chat(max_tokens=4, ignore_eos=True)
        server.complete(["a", "b"], stream=True, max_tokens=3, ignore_eos=True)
        server.complete(max_tokens=-1)
        server.complete(model="other")
        server.get("/nothing")
        until(lambda: len(hooks.finished) == 5)
    assert hooks.received == ["chat", "completions"]
    assert hooks.rejected == [
        ("completions", "status_400"),
        ("completions", "model_not_found"),
        ("", "status_404"),
    ]
    assert [exchange.status for exchange in hooks.finished] == [200, 200, 400, 404, 404]
    counts = [
        [len(choice.token_ids) for output in outputs for choice in output.outputs]
        for outputs in hooks.outputs[:2]
    ]
    assert counts == [[4], [3, 3]]
    assert not any(exchange.outputs for exchange in hooks.finished)
    first = hooks.outputs[0][0]
    assert first.metrics.queue_s is not None and first.metrics.prefill_s is not None
    assert sum(record.num_sampled_tokens for record in hooks.steps) == 10


def test_rebuilding_is_told(serve: Any) -> None:
    hooks = Recorder()
    options = {"check_interval_s": 0.02}
    with serve(serving_options={"metrics": hooks}, supervisor_options=options) as server:
        server.serving.supervisor.current().fail("for the test")
        until(lambda: hooks.num_rebuilds == 1)


async def test_routes_of_others_are_guarded_unless_public(build_tiny: Any) -> None:
    from chairlift.engine.supervisor import EngineSupervisor
    from chairlift.server.server_config import ServerConfig

    class Metrics:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send_bytes(send, 200, b"figures")

    async def status(public: tuple[str, ...]) -> int:
        serving = Serving(ServerConfig(api_key=("key",)), EngineSupervisor(build_tiny))
        route = Route("/metrics", Metrics(), methods=["GET"])
        app = create_app(serving, extra_routes=[route], public_paths=public)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
        await app(scope, send, send)
        serving.close()
        return int(sent[0]["status"])

    assert await status(()) == 401
    assert await status(("/metrics",)) == 200
