"""`chairlift serve`: the OpenAI-compatible HTTP server."""

from __future__ import annotations

from typing import Annotated

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig
from chairlift.errors import ConfigError
from chairlift.server.server_config import ServerConfig


@with_options(ServerConfig, EngineConfig)
def serve(
    model_name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model; the same as --model.")
    ] = None,
    *,
    server: Values,
    engine: Values,
) -> None:
    """Serve a model over HTTP, with the API that OpenAI's clients speak."""
    if model_name is not None:
        if engine.get("model", model_name) != model_name:
            raise ConfigError("MODEL and --model name two models: give one", field="model")
        engine["model"] = model_name
    server_config, engine_config = ServerConfig(**server), EngineConfig(**engine)
    server_config.check_exposure()
    _run(server_config, engine_config)


def _run(server_config: ServerConfig, engine_config: EngineConfig) -> None:
    from chairlift.engine.engine import Engine
    from chairlift.engine.supervisor import EngineSupervisor
    from chairlift.server.auth import read_keys
    from chairlift.server.http_server import HttpServer
    from chairlift.server.server_log import configure_server_log
    from chairlift.server.serving import Serving

    configure_server_log(server_config.log_format)
    supervisor = EngineSupervisor(
        lambda: Engine.from_config(engine_config), step_timeout_s=server_config.step_timeout
    )
    serving = Serving(server_config, supervisor, keys=read_keys(server_config))
    failure = HttpServer(serving).run_until_stopped()
    if failure is not None:
        raise failure
