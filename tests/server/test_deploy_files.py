"""The files under deploy/ parse, and speak of options and metrics that exist."""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import yaml

from chairlift.config import EngineConfig
from chairlift.server.server_config import ServerConfig
from http_harness import RunningServer

Serve = Callable[..., AbstractContextManager[RunningServer]]
DEPLOY = Path(__file__).parents[2] / "deploy"
FLAGS = {
    f"--{field.name.replace('_', '-')}"
    for kind in (ServerConfig, EngineConfig)
    for field in dataclasses.fields(kind)
}


def test_every_metric_of_the_dashboard_exists(serve: Serve) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    named: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"chairlift:\w+", target["expr"])
            assert names, target
            named.update(names)
    with serve(api_key=("one", "two"), public_metrics=True) as server:
        text = server.get("/metrics").body.decode()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    missing = {name for name in named if name.removesuffix("_bucket") not in families}
    assert named and not missing


def test_yaml_files_parse_and_point_at_each_other() -> None:
    files = {path.name: yaml.safe_load(path.read_text()) for path in DEPLOY.rglob("*.y*ml")}
    services = files["compose.yaml"]["services"]
    assert set(services) == {"chairlift", "prometheus", "grafana"}
    assert (DEPLOY.parent / services["chairlift"]["build"]["dockerfile"]).exists()
    scrape = files["prometheus.yml"]["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == ["chairlift:8000"]
    for volume in services["grafana"]["volumes"] + services["prometheus"]["volumes"]:
        source = volume.partition(":")[0]
        assert not source.startswith(".") or (DEPLOY / source).exists(), volume


def test_the_image_is_built_from_sources_and_nothing_else() -> None:
    """Neither keys nor environments nor builds of this machine get into the build's context."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    taken = {rule[1:] for rule in rules if rule.startswith("!")}
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    build = project["tool"]["scikit-build"]
    sources = [*build["sdist"]["include"], *build["wheel"]["packages"], "pyproject.toml"]
    assert taken == {source.partition("/")[0] for source in sources}
    assert all((DEPLOY.parent / name).exists() for name in taken)


def test_flags_exist() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "chairlift.service")
    dockerfile = (DEPLOY / "Dockerfile").read_text().partition("ENTRYPOINT")[2]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    command = " ".join(compose["services"]["chairlift"]["command"])
    for text in (unit["Service"]["ExecStart"], dockerfile, command):
        flags = set(re.findall(r"--[a-z][a-z-]+", text))
        assert flags and flags <= FLAGS, flags - FLAGS


def test_documents_name_only_our_flags() -> None:
    docs = DEPLOY.parent / "docs"
    rows = (docs / "migrating.md").read_text().splitlines()
    ours = " ".join(row.split("|")[1] for row in rows if row.startswith("|"))
    serving = (docs / "serving.md").read_text().replace("docker compose up --build", "")
    for text in (ours, serving):
        flags = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--no-access-log"}
        assert flags and flags <= FLAGS, flags - FLAGS
