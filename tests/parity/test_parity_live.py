"""The committed tiny logits against transformers itself; runs only with the extra `parity`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.parity_fixtures import load_tiny
from parity.tiny_checkpoints import VARIANTS, make_tiny_checkpoint

REASON = "the live comparison needs the extra `parity`"
pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)

# Importing make_fixtures needs none of the extra; what it computes does.
from parity.make_fixtures import TINY_TOLERANCE, folder_logits, tiny_logits  # noqa: E402

# What must move the logits.  A dotted key reaches into `rope_scaling`.
EFFECTIVE_CHANGES: list[tuple[str, str, object]] = [
    ("llama3", "rope_theta", 20000.0),
    ("llama3", "rms_norm_eps", 1e-6),
    ("llama3", "rope_scaling", None),
    ("llama3", "rope_scaling.factor", 4.0),
    ("llama3", "rope_scaling.low_freq_factor", 2.0),
    ("llama3", "rope_scaling.high_freq_factor", 8.0),
    ("llama3", "rope_scaling.original_max_position_embeddings", 128),
    ("llama_linear", "rope_scaling", None),
    ("llama_linear", "rope_scaling.factor", 2.0),
    ("llama_yarn", "rope_scaling", None),
    ("llama_yarn", "rope_scaling.factor", 2.0),
    ("llama_yarn", "rope_scaling.original_max_position_embeddings", 128),
    ("llama_yarn", "rope_scaling.attention_factor", 1.0),
    ("llama_yarn", "rope_scaling.beta_slow", 2.0),
    ("llama_yarn_explicit", "rope_scaling.attention_factor", 1.0),
    ("llama_yarn_explicit", "rope_scaling.beta_fast", 8.0),
    ("llama_yarn_explicit", "rope_scaling.beta_slow", 2.0),
    ("llama_yarn_explicit", "rope_scaling.truncate", True),
    ("mistral", "sliding_window", 23),
    ("mistral", "sliding_window", 25),
    ("mistral", "sliding_window", None),
    ("qwen2", "use_sliding_window", True),
    ("qwen3", "rope_theta", 10000.0),
]

# What real checkpoints carry and transformers ignores, or takes as its default.
IDLE_CHANGES: list[tuple[str, str, object]] = [
    ("llama3", "max_position_embeddings", 4096),
    ("llama_linear", "rope_scaling", {"rope_type": "linear", "factor": 2.5}),
    ("llama_yarn", "rope_scaling.beta_fast", 32.0),
    ("llama_yarn", "rope_scaling.beta_slow", 1.0),
    ("llama_yarn", "rope_scaling.truncate", True),
    ("llama_yarn", "max_position_embeddings", 4096),
    ("qwen2", "sliding_window", None),
    ("qwen3", "sliding_window", 8),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_still_computes_the_committed_logits(variant: str) -> None:
    expected = load_tiny().variants[variant]
    logits = tiny_logits(variant, expected.token_ids)
    np.testing.assert_allclose(
        logits[expected.positions], expected.logits, rtol=0, atol=TINY_TOLERANCE
    )


@pytest.mark.parametrize(("variant", "key", "value"), EFFECTIVE_CHANGES)
def test_config_key_reaches_the_logits(
    variant: str, key: str, value: object, tmp_path: Path
) -> None:
    """A reader that ignored this key could not pass the default tests."""
    assert _worst_change(variant, key, value, tmp_path) > 10 * TINY_TOLERANCE


@pytest.mark.parametrize(("variant", "key", "value"), IDLE_CHANGES)
def test_config_key_has_no_effect(variant: str, key: str, value: object, tmp_path: Path) -> None:
    assert _worst_change(variant, key, value, tmp_path) <= TINY_TOLERANCE


def _worst_change(variant: str, key: str, value: object, folder: Path) -> float:
    """Greatest logit difference at the fixture's positions after one change of config.json."""
    expected = load_tiny().variants[variant]
    make_tiny_checkpoint(variant, folder)
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    target = config
    *outer, last = key.split(".")
    for part in outer:
        target = target[part]
    target[last] = value
    path.write_text(json.dumps(config))
    logits = folder_logits(folder, expected.token_ids)
    return float(np.abs(logits[expected.positions] - expected.logits).max())
