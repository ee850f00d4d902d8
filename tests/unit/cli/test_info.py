"""`chairlift info`: facts that agree with where they come from, without loading weights."""

from __future__ import annotations

import dataclasses
import json

import pytest

from chairlift import __version__
from chairlift.kernels.cpu import library as library_module
from chairlift.kernels.cpu.arithmetic import Arithmetic
from chairlift.kernels.cpu.library import LibraryUnavailableError
from chairlift.machine import inspect_machine


def test_the_machine(cli, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "models-here"))
    code, out, err = cli("info")
    assert (code, err) == (0, "")
    for text in (__version__, "python", "processor", "kernels", "models-here", "limit binds"):
        assert text in out
    assert f"threads      {inspect_machine().num_cpus} " in out


def test_what_computes_and_who_chose_it(cli, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path))
    monkeypatch.delenv("CHAIRLIFT_ISA", raising=False)
    try:
        library = library_module.load_library()
    except LibraryUnavailableError:
        pytest.skip("no native library here")
    arithmetic = Arithmetic(
        isa="avx2+avx512_vnni",
        source="stored",
        levels={"floats": "avx2", "bytes": "avx512_vnni"},
        rates={"floats": {"avx512": 40.0, "avx2": 50.25}, "bytes": {"avx512_vnni": 300.0}},
        measured_at="2026-01-02T03:04:05+00:00",
        path=tmp_path / "kept.json",
    )
    monkeypatch.setattr(library, "arithmetic", arithmetic)
    lines = cli("info")[1].splitlines()
    assert "floats       avx2 (GMAC/s of a thread: avx512 40.0, avx2 50.2)" in lines
    assert "bytes        avx512_vnni (GMAC/s of a thread: avx512_vnni 300.0)" in lines
    kept = f"kept in {tmp_path / 'kept.json'}"
    assert f"measured     at an earlier start, 2026-01-02T03:04:05+00:00, {kept}" in lines
    facts = json.loads(cli("info", "--json")[1])["kernels"]["arithmetic"]
    assert facts["levels"] == arithmetic.levels and facts["gmacs_per_thread"] == arithmetic.rates

    nowhere = dataclasses.replace(arithmetic, source="measured", path=None)
    monkeypatch.setattr(library, "arithmetic", nowhere)
    assert "+00:00, kept nowhere: the cache folder cannot be written\n" in cli("info")[1]
    forced = Arithmetic(isa=library.isa, source="forced")
    monkeypatch.setattr(library, "arithmetic", forced)
    assert f"arithmetic   {library.isa}, forced by CHAIRLIFT_ISA" in cli("info")[1]


def test_json(cli, small, model_folder) -> None:
    code, out, _ = cli("info", model_folder, "--json", "--kv-cache-memory", "8MiB")
    facts = json.loads(out)
    model = facts["model"]
    assert code == 0 and facts["num_cpus"] >= 1 and facts["chairlift"] == __version__
    assert model["config"]["architecture"] == "qwen2" and model["config"]["num_layers"] == 3
    # one key and one value head of 16 floats in each of three layers
    assert model["kv_bytes_per_token"] == 3 * 2 * 1 * 16 * 4
    num_blocks = 8 * 2**20 // (16 * model["kv_bytes_per_token"])
    assert model["memory"]["num_blocks"] == num_blocks
    assert model["fits"] == [{"num_tokens": 256, "num_requests": num_blocks // 16}]


def test_bytes_take_less(cli, small, model_folder) -> None:
    memory = {}
    for kernels in ("native", "int8"):
        code, out, err = cli("info", model_folder, "--json", "--kernels", kernels)
        if "cannot be used" in err:
            pytest.skip("no native library here")
        model = json.loads(out)["model"]
        assert (code, model["kernels"]) == (0, kernels)
        memory[kernels] = model["memory"]
        if kernels == "int8":
            # 16 codes and a float scale for a head
            assert model["kv_bytes_per_token"] == 3 * 2 * 1 * (16 + 4)
    assert memory["int8"]["weights_bytes"] < memory["native"]["weights_bytes"] / 3


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (("--kernels", "reference"), ["float32"]),
        (("--kernels", "native"), ["float32"]),
        (("--kernels", "int8"), ["8 bits in groups of 32", "float32"]),
        (
            ("--kernels", "int8", "--quant-compute", "fast"),
            ["8 bits with a scale per output", "8 bits in groups of 32", "float32"],
        ),
    ],
)
def test_what_weights_are_kept_as(cli, small, model_folder, options, kinds) -> None:
    code, out, err = cli("info", model_folder, "--json", *options)
    if "cannot be used" in err:
        pytest.skip("no native library here")
    model = json.loads(out)["model"]
    assert code == 0 and sorted(model["weights"]) == sorted(kinds)
    assert sum(model["weights"].values()) == model["memory"]["weights_bytes"]
    text = cli("info", model_folder, *options)[1]
    line = next(line for line in text.splitlines() if line.startswith("weights      "))
    assert all(f"{kind} (" in line for kind in kinds)
    assert f"weights kept as {line.split(maxsplit=1)[1]}" in text


@pytest.mark.parametrize(
    ("kernels", "asked", "stored", "size"),
    [
        ("native", "fp16", "float16", 2),
        ("int8", "bfloat16", "bfloat16", 2),
        ("int8", "fp32", "float32", 4),
        ("reference", "bf16", "bfloat16", 2),
    ],
)
def test_what_a_cache_of_another_type_takes(
    cli, small, model_folder, kernels, asked, stored, size
) -> None:
    options = ("--kernels", kernels, "--kv-cache-dtype", asked, "--kv-cache-memory", "8MiB")
    code, out, err = cli("info", model_folder, "--json", *options)
    if "cannot be used" in err:
        pytest.skip("no native library here")
    model = json.loads(out)["model"]
    assert (code, model["kv_cache_dtype"]) == (0, stored)
    assert model["kv_bytes_per_token"] == 3 * 2 * 1 * 16 * size
    assert model["memory"]["num_blocks"] == 8 * 2**20 // (16 * model["kv_bytes_per_token"])
    text = cli("info", model_folder, *options)[1]
    assert f"KV cache     {96 * size} bytes per token, {stored}" in text
    assert f"of {stored} = " in text


def test_a_cache_that_the_kernels_do_not_have_is_one_line(cli, model_folder) -> None:
    options = ("--kernels", "reference", "--kv-cache-dtype", "int8")
    code, out, err = cli("info", model_folder, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "kv_cache_dtype=int8" in err and err.count("\n") == 1


def test_fast_compute_takes_a_byte_for_a_weight(cli, small, model_folder) -> None:
    models = {}
    for compute in ("exact", "fast"):
        options = ("--kernels", "int8", "--quant-compute", compute)
        code, out, err = cli("info", model_folder, "--json", *options)
        if "cannot be used" in err:
            pytest.skip("no native library here")
        models[compute] = json.loads(out)["model"]
        assert (code, models[compute]["quant_compute"]) == (0, compute)
        text = cli("info", model_folder, *options)[1]
        assert f"kernels      int8, {compute}" in text
        assert f"matrices {compute}: " in text and "(quant_compute)" in text
    # A scale of four bytes for each output, where floats get one of two bytes for 32 of them.
    sizes = {name: model["memory"]["weights_bytes"] for name, model in models.items()}
    assert 0.9 * sizes["exact"] < sizes["fast"] < sizes["exact"]


def test_a_compute_without_effect_is_one_line(cli, model_folder) -> None:
    options = ("--kernels", "reference", "--quant-compute", "fast")
    code, out, err = cli("info", model_folder, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "quant_compute=fast has no effect" in err


def test_bytes_need_whole_pages(cli, model_folder) -> None:
    code, _, err = cli("info", model_folder, "--kernels", "int8", "--block-size", "8")
    if "cannot be used" in err:
        pytest.skip("no native library here")
    assert code == 2 and "block_size that is a multiple of 16, not 8" in err


def test_a_model_is_planned_and_not_loaded(cli, model_folder, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("chairlift.weights.checkpoint.HuggingFaceCheckpoint.load", refuse)
    code, out, _ = cli("info", model_folder)
    assert code == 0
    assert "qwen2: 3 layers of 64, 4 heads (1 for keys and values) of 16" in out
    assert "requests of 256 tokens" in out and "max_model_len 256 (the model's context)" in out


def test_a_setting_that_does_not_fit_names_the_one_that_would(cli, model_folder) -> None:
    code, _, err = cli("info", model_folder, "--max-model-len", "9999")
    assert code == 2 and "at most 256" in err


def test_missing_native_kernels_come_with_the_reason(cli, monkeypatch) -> None:
    def fail() -> None:
        raise LibraryUnavailableError("it was never built")

    monkeypatch.setattr(library_module, "load_library", fail)
    monkeypatch.setattr("chairlift.bench.machine_facts.load_library", fail)
    assert "reference, which is slow: it was never built" in cli("info")[1]
    kernels = json.loads(cli("info", "--json")[1])["kernels"]
    assert kernels == {"backend": "reference", "reason": "it was never built"}


@pytest.mark.parametrize("isa", ["none-such"])
def test_a_wrong_isa_is_one_line(cli, monkeypatch, isa: str) -> None:
    library = pytest.importorskip("chairlift.kernels.cpu.library")
    try:
        library.load_library()
    except LibraryUnavailableError:
        pytest.skip("no native library here")
    library.load_library.cache_clear()
    monkeypatch.setenv("CHAIRLIFT_ISA", isa)
    try:
        code, _, err = cli("info")
    finally:
        monkeypatch.delenv("CHAIRLIFT_ISA")
        library.load_library.cache_clear()
    assert code == 2 and err.startswith("error: ") and isa in err
