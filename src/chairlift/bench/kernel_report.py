"""What `chairlift bench kernels` prints: a line per case, then a line per family.

The share of a family at a number of rows is that of a whole step: the sum of the bounds over the
sum of the times, each case as often as a step calls it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.kernel_shapes import StepShapes
from chairlift.bench.kernel_timing import KernelResult
from chairlift.bench.machine_facts import machine_facts
from chairlift.bench.machine_limits import UNITS, Rates, median_rates

HEADER = (
    f"{'kernel':31}{'rows':>5}{'ms':>10}{'rate':>9}{'limit':>9} {'':6}"
    f"  {'the limit is':12}{'share':>7}"
)


def result_line(result: KernelResult) -> str:
    """One case, below `HEADER`."""
    return (
        f"{result.label:31}{result.num_rows:5}{result.seconds * 1e3:10.4f}{result.rate:9.1f}"
        f"{result.limit_rate:9.1f} {UNITS[result.limit]:6}  {result.limit:12}{result.share:7.0%}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyShare:
    """A family at one number of rows, or one step of attention."""

    family: str
    at: str
    share: float


def family_shares(results: Sequence[KernelResult]) -> list[FamilyShare]:
    """In the order of the results."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for result in results:
        at = result.label if result.family.startswith("attention") else str(result.num_rows)
        bound, total = sums.get((result.family, at), (0.0, 0.0))
        sums[result.family, at] = (
            bound + result.count * result.bound_seconds,
            total + result.count * result.seconds,
        )
    return [
        FamilyShare(family=family, at=at, share=bound / total)
        for (family, at), (bound, total) in sums.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """Everything that was timed."""

    shapes: StepShapes
    isa: str
    num_threads: int
    results: tuple[KernelResult, ...]
    without_int8: str | None
    """Why kernels on bytes were left out."""

    @property
    def limits(self) -> Rates:
        """The medians over all cases."""
        return median_rates(result.rates for result in self.results)

    def summary(self) -> str:
        limits = ", ".join(f"{name} {rate:.1f} {UNITS[name]}" for name, rate in self.limits.items())
        return "\n".join(
            [
                f"limits, medians of this run: {limits}",
                "share of the limit over a step, by rows:",
                *self._family_lines(),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": machine_facts(),
            "model": self.shapes.model,
            "isa": self.isa,
            "num_threads": self.num_threads,
            "without_int8": self.without_int8,
            "limits": {
                name: {"rate": rate, "unit": UNITS[name]} for name, rate in self.limits.items()
            },
            "families": [dataclasses.asdict(share) for share in family_shares(self.results)],
            "cases": [
                {
                    **dataclasses.asdict(result),
                    "unit": UNITS[result.limit],
                    "share": result.share,
                }
                for result in self.results
            ],
        }

    def _family_lines(self) -> Iterator[str]:
        families: dict[str, list[FamilyShare]] = {}
        for share in family_shares(self.results):
            families.setdefault(share.family, []).append(share)
        for family, shares in families.items():
            parts = ", ".join(f"{share.at}: {share.share:.0%}" for share in shares)
            yield f"  {family:24} {parts}"
