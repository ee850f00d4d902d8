"""`chairlift bench kernels`: every kernel of a step beside what the machine allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig

if TYPE_CHECKING:
    from chairlift.bench.kernel_case import CaseGroup
    from chairlift.bench.kernel_report import KernelReport
    from chairlift.bench.kernel_shapes import StepShapes
    from chairlift.bench.kernel_timing import TimingPlan
    from chairlift.bench.machine_limits import LimitMeter


@with_options(EngineConfig, only=("threads",))
def kernels(
    model: Annotated[
        str | None,
        typer.Argument(help="Whose shapes to time, weights unread. Default: SmolLM2-135M's."),
    ] = None,
    only: Annotated[
        str, typer.Option("--only", help='Families whose name contains this, such as "int8".')
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer shapes and turns: some seconds.")
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results here.")
    ] = None,
    *,
    engine: Values,
) -> None:
    """Rate, limit and share of every kernel and shape of a step, the limits measured beside it."""
    from chairlift.bench.kernel_timing import QUICK_PLAN, TimingPlan, all_groups
    from chairlift.bench.machine_limits import LimitMeter
    from chairlift.cli.result_files import check_writable, write_json
    from chairlift.cli.terminal import note, note_load, show
    from chairlift.engine.resolved_config import choose_num_threads
    from chairlift.machine import inspect_machine

    asked = EngineConfig(**engine)
    if json_path is not None:
        check_writable(json_path)
    note_load()
    meter = LimitMeter(choose_num_threads(asked, inspect_machine()))
    shapes = _shapes(model)
    plan = QUICK_PLAN if quick else TimingPlan()
    groups, without_int8 = all_groups(shapes, meter.num_threads, plan)
    if without_int8 is not None:
        note(f"float32 only: {without_int8}")
    groups = _chosen(groups, only)
    show(f"{shapes.model}: {meter.library.isa}, {meter.num_threads} threads")
    report = _time(shapes, groups, meter, plan, without_int8)
    show("\n" + report.summary())
    if json_path is not None:
        write_json(report.to_json(), json_path)


def _time(
    shapes: StepShapes,
    groups: list[CaseGroup],
    meter: LimitMeter,
    plan: TimingPlan,
    without_int8: str | None,
) -> KernelReport:
    """Each line as it is known."""
    from chairlift.bench.kernel_report import HEADER, KernelReport, result_line
    from chairlift.bench.kernel_timing import KernelResult, time_groups
    from chairlift.cli.progress_line import progress_line
    from chairlift.cli.terminal import show

    results: list[KernelResult] = []
    with progress_line(sum(group.num_cases for group in groups)) as line:
        line.show(groups[0].family)
        for result in time_groups(groups, meter, plan):
            line.clear()
            if not results or results[-1].family != result.family:
                show(f"\n{result.family}\n{HEADER}")
            results.append(result)
            show(result_line(result))
            line.advance()
            line.show(result.family)
    return KernelReport(
        shapes=shapes,
        isa=meter.library.isa,
        num_threads=meter.num_threads,
        results=tuple(results),
        without_int8=without_int8,
    )


def _chosen(groups: list[CaseGroup], only: str) -> list[CaseGroup]:
    """Raises `ConfigError` if no family has `only` in its name."""
    from chairlift.errors import ConfigError

    chosen = [group for group in groups if only in group.family]
    if not chosen:
        names = ", ".join(dict.fromkeys(group.family for group in groups))
        raise ConfigError(f"no family has {only!r} in its name: {names}", field="only")
    return chosen


def _shapes(model: str | None) -> StepShapes:
    import sys

    from chairlift.bench.kernel_shapes import default_shapes, read_shapes
    from chairlift.weights.model_source import resolve_model

    if model is None:
        return default_shapes()
    EngineConfig(model=model)
    return read_shapes(resolve_model(model, progress=sys.stderr.isatty()), model)
