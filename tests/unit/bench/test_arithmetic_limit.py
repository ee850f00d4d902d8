"""The arithmetic limit of a workload, by hand."""

from __future__ import annotations

import pytest

from chairlift.bench.arithmetic_limit import LimitReport, arithmetic_limits, workload_macs
from chairlift.bench.kernel_shapes import DEFAULT_CONFIG
from chairlift.bench.machine_limits import Rates
from chairlift.bench.model_macs import MacCount
from chairlift.bench.workload import random_workload

PEAKS: Rates = {"int8 dot": 766.0, "fp32 FMA": 191.0}
REQUESTS = random_workload(
    49_152, num_requests=128, input_tokens=(512, 512), output_tokens=(128, 128), seed=0
)


def test_limit_is_tokens_over_time_at_the_peak() -> None:
    macs = MacCount(linear=300, attention=100)
    (limit,) = arithmetic_limits("native", macs, 8, {"int8 dot": 1.0, "fp32 FMA": 2e-9})
    assert limit.seconds == pytest.approx(200.0)
    assert limit.output_tokens_per_s == pytest.approx(0.04)
    assert limit.share(0.01) == pytest.approx(0.25)


def test_bytes_have_two_limits() -> None:
    """128 requests of 512 and 128: about 1,245 tokens/s, or 980 with float32 attention."""
    macs = workload_macs(DEFAULT_CONFIG, REQUESTS)
    all_bytes, float_attention = arithmetic_limits("int8", macs, 128 * 128, PEAKS)
    assert all_bytes.output_tokens_per_s == pytest.approx(1248, abs=1)
    assert float_attention.output_tokens_per_s == pytest.approx(982, abs=1)
    assert all_bytes.name == "all at the int8 dot peak"
    assert "attention at that of fp32 FMA" in float_attention.name


def test_report_takes_the_highest_peaks() -> None:
    low: Rates = {"int8 dot": 700.0, "fp32 FMA": 191.0}
    report = LimitReport.of("int8", DEFAULT_CONFIG, REQUESTS, [low, PEAKS])
    assert report.peaks == PEAKS
    written = report.to_json(624.0)
    assert written["limits"][0]["share"] == pytest.approx(0.5, abs=0.001)
    assert written["linear_macs"] + written["attention_macs"] == report.macs.total
    lines = "\n".join(report.lines(624.0))
    assert "limit 1249 output tokens/s, all at the int8 dot peak: 50% reached" in lines
