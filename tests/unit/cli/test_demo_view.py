"""The live view of the demo, drawn on a terminal that is only a buffer."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chairlift.bench.workload import BenchRequest
from chairlift.cli import demo_view
from chairlift.cli.demo_view import LineView, LiveView, create_view
from unit.bench.step_records import make_record

REQUESTS = [
    BenchRequest(request_id=str(i), prompt_token_ids=(1,), num_output_tokens=5) for i in range(3)
]


@pytest.fixture
def steps() -> list:
    return [
        make_record(0, {"0": "prefill", "1": "prefill"}, num_waiting=1),
        make_record(1, {"0": "decode", "1": "decode"}, finished=(("1", "length"),), num_waiting=1),
        make_record(2, {"0": "decode", "1": "padding"}, num_waiting=1),
    ]


def test_rows_are_seats_and_columns_are_steps(steps: list) -> None:
    view = LiveView(3)
    view.start("static", REQUESTS)
    for record in steps:
        view._tally.step(record)
        view._columns.append(view._seats.update(record).states)
    console = Console(file=io.StringIO(), width=80)
    console.print(view._picture())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("static        1 of 3 done    1 waiting")
    assert lines[1].split() == ["1", "#0", "3/5", "█▓▓"]
    assert lines[2].split() == ["2", "#1", "2/5", "█▓░"]
    assert lines[3].split() == ["3", "···"]
    assert all(state in lines[4] for state in ("prefill", "decode", "padding", "empty"))


def test_a_pipe_gets_lines(steps: list, capsys, monkeypatch) -> None:
    assert isinstance(create_view(3), LineView)
    monkeypatch.setattr(demo_view, "_LINE_EVERY_S", 0.0)
    with LineView() as view:
        view.start("dynamic", REQUESTS)
        for record in steps:
            view.step(record)
    out = capsys.readouterr().out
    assert out.count("\n") == 3 and "\x1b" not in out
    assert out.splitlines()[-1].startswith("dynamic       1 of 3 done    1 waiting")
