"""Makes small model files for the tests of this room; the writers are packages, not our code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

WriteGGUF = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """write_gguf(name, ...) -> the path of a small, valid GGUF file, or of its first part."""

    def write(name: str = "tiny.gguf", *, split_max_tensors: int = 0, alignment: int = 32) -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
        if alignment != 32:
            writer.add_custom_alignment(alignment)
        writer.add_string("general.name", "naïve ☃")
        writer.add_uint32("llama.block_count", 2)
        writer.add_float32("llama.rope.freq_base", 10000.5)
        writer.add_bool("tokenizer.ggml.add_bos_token", True)
        writer.add_int8("test.int8", -5)
        writer.add_uint64("test.uint64", 2**63 + 1)
        writer.add_float64("test.float64", -0.1)
        writer.add_array("tokenizer.ggml.tokens", ["a", "", "Ġthe", "日本"])
        writer.add_array("tokenizer.ggml.token_type", [1, 2, -3, 4])
        writer.add_array("test.floats", [0.5, 1.5])
        writer.add_array("test.bools", [True, False, True])
        rng = np.random.default_rng(7)
        for index in range(3):
            writer.add_tensor(f"blk.{index}.attn_norm.weight", rng.random(5, np.float32))
        quantised = gguf.quantize(rng.random((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("token_embd.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("output_norm.weight", rng.random((2, 3)).astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if path.exists() else min(tmp_path.glob(f"{path.stem}-*.gguf"))

    return write
