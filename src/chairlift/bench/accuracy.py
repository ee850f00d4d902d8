"""How far one kernel mode is from float32 kernels: the same model, the same text, token by token.

Both read the text in windows, each from its own start.  Compared are the perplexities, and how
often both put the same token first.  Knows nothing of a mode but its options and its bounds.

```
window      t0   t1   t2  ..  t511
predicts    t1   t2   t3  ..           511 predictions, all of them scored
```
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.bench.kernel_mode import FLOAT32_KERNELS, AccuracyBounds, KernelMode
from chairlift.bench.machine_facts import machine_facts
from chairlift.bench.text_table import text_table
from chairlift.config import EngineConfig
from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.errors import ConfigError
from chairlift.kernels.interface import FloatArray, IntArray
from chairlift.runner.forward_batch import build_layout
from chairlift.runner.memory import LOGIT_ROWS
from chairlift.tokenizer.tokenizer import Tokenizer

WINDOW_TOKENS = 512


@dataclass(slots=True, kw_only=True)
class AccuracyTally:
    """Sums over the predictions so far; losses in nats."""

    num_predictions: int = 0
    num_agreed: int = 0
    loss: float = 0.0
    against_loss: float = 0.0
    squared_difference: float = 0.0
    """Of the two losses."""

    def add(self, logits: FloatArray, against: FloatArray, next_ids: IntArray) -> None:
        """Count R predictions: logits [R, vocab] of both, and the R tokens that did follow."""
        loss, against_loss = token_losses(logits, next_ids), token_losses(against, next_ids)
        self.num_predictions += len(next_ids)
        self.num_agreed += int((logits.argmax(axis=1) == against.argmax(axis=1)).sum())
        self.loss += float(loss.sum())
        self.against_loss += float(against_loss.sum())
        self.squared_difference += float(np.square(loss - against_loss).sum())

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.num_predictions)

    @property
    def against_perplexity(self) -> float:
        return math.exp(self.against_loss / self.num_predictions)

    @property
    def perplexity_change(self) -> float:
        """Relative to the float32 kernels; above 0 is worse."""
        return math.expm1((self.loss - self.against_loss) / self.num_predictions)

    @property
    def perplexity_change_error(self) -> float:
        """One standard error of the change: what another text of this length would move it by."""
        mean = (self.loss - self.against_loss) / self.num_predictions
        variance = self.squared_difference / self.num_predictions - mean * mean
        return math.sqrt(max(variance, 0.0) / self.num_predictions)

    @property
    def agreement(self) -> float:
        """Share of the predictions whose most likely token is the same."""
        return self.num_agreed / self.num_predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """What was measured, beside its bounds."""

    model: str
    mode: KernelMode
    against: KernelMode
    num_windows: int
    window_tokens: int
    bounds: AccuracyBounds
    tally: AccuracyTally

    @property
    def passed(self) -> bool:
        """False, too, where a figure is not a number."""
        is_close = self.tally.perplexity_change <= self.bounds.max_perplexity_change
        return is_close and self.tally.agreement >= self.bounds.min_agreement

    @property
    def title(self) -> str:
        return (
            f"{self.tally.num_predictions} predictions in {self.num_windows} windows of"
            f" {self.window_tokens} tokens"
        )

    def text(self) -> str:
        tally, bounds = self.tally, self.bounds
        rows = [
            ("perplexity", f"{tally.against_perplexity:.4f}", f"{tally.perplexity:.4f}", ""),
            (
                "  change",
                "",
                f"{tally.perplexity_change:+z.3%} +- {tally.perplexity_change_error:.3%}",
                f"at most {bounds.max_perplexity_change:+.2%}",
            ),
            (
                "same most likely token",
                "",
                f"{tally.agreement:.2%}",
                f"at least {bounds.min_agreement:.1%}",
            ),
        ]
        table = text_table(("", str(self.against), str(self.mode), "bound"), rows)
        verdict = "passed" if self.passed else "FAILED"
        return "\n".join([self.title, "", table, "", f"{self.mode}: {verdict}"])

    def to_json(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "machine": machine_facts(),
            "model": self.model,
            "kernels": self.mode.kernels,
            "kv_cache_dtype": self.mode.kv_dtype,
            "quant_compute": self.mode.compute,
            "against": self.against.kernels,
            "num_windows": self.num_windows,
            "window_tokens": self.window_tokens,
            "num_predictions": tally.num_predictions,
            "perplexity": tally.perplexity,
            "against_perplexity": tally.against_perplexity,
            "perplexity_change": tally.perplexity_change,
            "perplexity_change_error": tally.perplexity_change_error,
            "agreement": tally.agreement,
            "bounds": dataclasses.asdict(self.bounds),
            "passed": self.passed,
        }


def check_modes(mode: KernelMode, against: KernelMode) -> None:
    """Raises `ConfigError` for a pair that would say nothing."""
    if against.kernels not in FLOAT32_KERNELS:
        raise ConfigError(
            f"against must be one of {', '.join(FLOAT32_KERNELS)}, got {against.kernels!r}",
            field="against",
        )
    if mode.kernels == "auto":
        raise ConfigError("kernels must name the mode to measure, not 'auto'", field="kernels")
    found = (mode.kernels, mode.kv_dtype, mode.compute)
    if found == (against.kernels, against.kv_dtype, against.compute):
        raise ConfigError(
            f"kernels and against are both {mode.kernels!r}: choose different ones",
            field="against",
        )


def read_text(path: Path) -> str:
    """The text to read.  Raises `ConfigError` where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    raise ConfigError(f"cannot read the text {path}: {reason}; name one with --text", field="text")


def load_for_accuracy(
    asked: EngineConfig, mode: KernelMode, *, show_download: bool = False
) -> LoadedModel:
    """The model in this mode, with memory for one window at a time."""
    asked = dataclasses.replace(
        asked,
        kernels=mode.kernels,
        kv_cache_dtype=mode.kv_cache_dtype,
        quant_compute=mode.quant_compute,
        max_num_seqs=1,
        max_num_batched_tokens=WINDOW_TOKENS,
    )
    return load_model(asked, show_download=show_download)


def measure_accuracy(
    tested: LoadedModel,
    against: LoadedModel,
    text: str,
    *,
    mode: KernelMode,
    against_mode: KernelMode,
    num_windows: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> AccuracyReport:
    """Read `text` with both.  Raises `ConfigError` if it has less than one window.

    num_windows: at most this many, from the text's start; None: all that the text fills.
    """
    (report,) = measure_modes(
        {mode: tested},
        against,
        text,
        against_mode=against_mode,
        num_windows=num_windows,
        progress=progress,
    )
    return report


def measure_modes(
    tested: Mapping[KernelMode, LoadedModel],
    against: LoadedModel,
    text: str,
    *,
    against_mode: KernelMode,
    num_windows: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[AccuracyReport]:
    """The same for several modes, in the order given, that are compared with one reading."""
    lengths = [model.resolved.memory.max_model_len for model in (against, *tested.values())]
    size = min(WINDOW_TOKENS, *lengths)
    windows = cut_windows(text, against.tokenizer, size)[:num_windows]
    if not windows:
        raise ConfigError(f"the text is too short: it needs {size} tokens", field="text")
    tallies = {mode: AccuracyTally() for mode in tested}
    for index, window in enumerate(windows):
        _read_window(tested, against, window, tallies)
        for mode, tally in tallies.items():
            name = f"{mode}: " if len(tallies) > 1 else ""
            progress(
                f"window {index + 1}/{len(windows)}: {name}perplexity"
                f" {tally.against_perplexity:.3f}, change {tally.perplexity_change:+z.3%},"
                f" agreement {tally.agreement:.2%}"
            )
    return [
        AccuracyReport(
            model=against.name,
            mode=mode,
            against=against_mode,
            num_windows=len(windows),
            window_tokens=size,
            bounds=mode.bounds,
            tally=tally,
        )
        for mode, tally in tallies.items()
    ]


def modes_text(reports: Sequence[AccuracyReport]) -> str:
    """One line for each mode of one reading."""
    rows = [
        (
            str(report.mode),
            f"{report.tally.perplexity:.4f}",
            f"{report.tally.perplexity_change:+z.3%} +- {report.tally.perplexity_change_error:.3%}",
            f"{report.tally.agreement:.2%}",
            f"{report.bounds.max_perplexity_change:+.1%}, {report.bounds.min_agreement:.1%}",
            "passed" if report.passed else "FAILED",
        )
        for report in reports
    ]
    first = reports[0]
    float32 = (str(first.against), f"{first.tally.against_perplexity:.4f}", "", "", "", "")
    titles = ("mode", "perplexity", "change", "same best token", "bounds", "")
    return "\n".join([first.title, "", text_table(titles, [float32, *rows])])


def cut_windows(text: str, tokenizer: Tokenizer, size: int) -> list[IntArray]:
    """Whole windows of `size` tokens, one after the other; each begins as the model's texts do."""
    start = [tokenizer.bos_id] if tokenizer.add_bos else []
    step = size - len(start)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [
        np.array([*start, *ids[first : first + step]], dtype=np.int32)
        for first in range(0, len(ids) - step + 1, step)
    ]


def token_losses(logits: FloatArray, next_ids: Sequence[int] | IntArray) -> NDArray[np.float64]:
    """[R] negative log probabilities of the tokens that followed; logits [R, vocab]."""
    with np.errstate(invalid="ignore"):  # what is not a number stays so, and fails the gate
        shifted = logits - logits.max(axis=1, keepdims=True)
        total = np.exp(shifted).sum(axis=1, dtype=np.float64)
        chosen = shifted[np.arange(len(next_ids)), next_ids].astype(np.float64)
        losses: NDArray[np.float64] = np.log(total) - chosen
    return losses


def _read_window(
    tested: Mapping[KernelMode, LoadedModel],
    against: LoadedModel,
    window: IntArray,
    tallies: Mapping[KernelMode, AccuracyTally],
) -> None:
    """A few rows of logits at a time: those of a whole window would be large."""
    against_hidden = _forward(against, window)
    hidden = {mode: _forward(model, window) for mode, model in tested.items()}
    for first in range(0, len(window) - 1, LOGIT_ROWS):
        rows = np.arange(first, min(first + LOGIT_ROWS, len(window) - 1), dtype=np.int32)
        wanted = against.runner.model.logits(against_hidden, rows)
        for mode, model in tested.items():
            logits = model.runner.model.logits(hidden[mode], rows)
            tallies[mode].add(logits, wanted, window[rows + 1])


def _forward(model: LoadedModel, window: IntArray) -> FloatArray:
    """Hidden states [T, hidden] of one window, as one prompt."""
    runner, block_size = model.runner, model.resolved.memory.block_size
    blocks = range(-(-len(window) // block_size))
    item = ScheduledRequest("", "prefill", 0, len(window), blocks, False)
    return runner.model.forward(window, build_layout([item], block_size), runner.kv_cache.blocks)
