"""The fastest that a workload could go if only its multiply-adds took time.

limit = output tokens / (multiply-adds of the workload / peak), the peak measured in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.machine_limits import UNITS, LimitMeter, LimitName, Rates, highest_rates
from chairlift.bench.model_macs import MacCount, MacRates
from chairlift.bench.workload import BenchRequest
from chairlift.models.model_config import ModelConfig

INT8_KERNELS = ("int8",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticLimit:
    """One way to count: which peak the matrices and which the attention are held against."""

    linear: LimitName
    attention: LimitName
    seconds: float
    """That the workload needs at these peaks."""
    output_tokens_per_s: float

    @property
    def name(self) -> str:
        if self.linear == self.attention:
            return f"all at the {self.linear} peak"
        return f"matrices at the {self.linear} peak, attention at that of {self.attention}"

    def share(self, output_tokens_per_s: float) -> float:
        """How much of it was reached."""
        return output_tokens_per_s / self.output_tokens_per_s


def measure_peaks(meter: LimitMeter) -> Rates:
    """Both peaks, now."""
    return {"int8 dot": meter.int8_dot(), "fp32 FMA": meter.fp32_fma()}


def workload_macs(config: ModelConfig, requests: Sequence[BenchRequest]) -> MacCount:
    """What the requests need, however they are batched."""
    rates = MacRates.of(config)
    total = MacCount(0, 0)
    for request in requests:
        total += rates.of_request(len(request.prompt_token_ids), request.num_output_tokens)
    return total


def arithmetic_limits(
    kernels: str, macs: MacCount, num_output_tokens: int, peaks: Rates
) -> list[ArithmeticLimit]:
    """Kernels on bytes are held against their own peak first, then with float32 attention."""
    if kernels in INT8_KERNELS:
        ways: list[tuple[LimitName, LimitName]] = [
            ("int8 dot", "int8 dot"),
            ("int8 dot", "fp32 FMA"),
        ]
    else:
        ways = [("fp32 FMA", "fp32 FMA")]
    limits = []
    for linear, attention in ways:
        seconds = (macs.linear / peaks[linear] + macs.attention / peaks[attention]) / 1e9
        limits.append(
            ArithmeticLimit(
                linear=linear,
                attention=attention,
                seconds=seconds,
                output_tokens_per_s=num_output_tokens / seconds,
            )
        )
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReport:
    """Peaks and what they allow."""

    macs: MacCount
    peaks: Rates
    limits: tuple[ArithmeticLimit, ...]

    @classmethod
    def of(
        cls,
        kernels: str,
        config: ModelConfig,
        requests: Sequence[BenchRequest],
        measured: Sequence[Rates],
    ) -> LimitReport:
        """From peaks measured before, between and after the rounds."""
        macs, peaks = workload_macs(config, requests), highest_rates(measured)
        num_output_tokens = sum(request.num_output_tokens for request in requests)
        return cls(
            macs=macs,
            peaks=peaks,
            limits=tuple(arithmetic_limits(kernels, macs, num_output_tokens, peaks)),
        )

    def lines(self, output_tokens_per_s: float) -> list[str]:
        peaks = ", ".join(f"{name} {rate:.0f} {UNITS[name]}" for name, rate in self.peaks.items())
        return [
            f"arithmetic  {self.macs.total / 1e9:.1f} GMAC; peaks of this run: {peaks}",
            *(
                f"            limit {limit.output_tokens_per_s:.0f} output tokens/s,"
                f" {limit.name}: {limit.share(output_tokens_per_s):.0%} reached"
                for limit in self.limits
            ),
        ]

    def to_json(self, output_tokens_per_s: float) -> dict[str, Any]:
        return {
            "linear_macs": self.macs.linear,
            "attention_macs": self.macs.attention,
            "peaks_gmacs": dict(self.peaks),
            "limits": [
                {
                    "name": limit.name,
                    "output_tokens_per_second": limit.output_tokens_per_s,
                    "share": limit.share(output_tokens_per_s),
                }
                for limit in self.limits
            ],
        }
