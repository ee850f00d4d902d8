"""One face for a model's weights, whether they come from GGUF files or a Hugging Face folder.

Decides what lies at a path, and hands out tensors under canonical names, as float32 or as they are
quantised.  Says nothing about what they mean: the configuration is passed on as it was found.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from chairlift.errors import ModelFileError
from chairlift.kernels.grouped_weights import GroupedWeights, GroupForm
from chairlift.kernels.stored_floats import ShortForm, StoredFloats
from chairlift.weights.dequantize import dequantize
from chairlift.weights.gguf import GGUFFile, part_of_set
from chairlift.weights.grouped_weights import group_form, group_weights
from chairlift.weights.json_file import read_json_object
from chairlift.weights.safetensors import INDEX_FILE, SINGLE_FILE, SafetensorsFolder
from chairlift.weights.stored_floats import short_form_of, view_floats
from chairlift.weights.tensor_names import canonical_name

POOLING_FILE = "1_Pooling/config.json"
_OPTIONAL_CONFIGS = {
    "generation_config": "generation_config.json",
    "tokenizer_config": "tokenizer_config.json",
    "pooling": POOLING_FILE,
}
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_CONFIG_BYTES = 1 << 20
_FLOAT32_BYTES = 4


class Checkpoint(ABC):
    """An open model: its configuration and its tensors.  A context manager; or call close()."""

    kind: Literal["gguf", "huggingface"]

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        """The GGUF file (of a split set, its first part) or the folder."""
        self.metadata = metadata
        """GGUF: the file's metadata, which decodes lazily, so read it before close().
        Hugging Face: `config`, and where present `generation_config`, `tokenizer_config` and
        `pooling`, which is that of Sentence Transformers."""

    @abstractmethod
    def names(self) -> list[str]:
        """The canonical names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor `name`.  Raises ModelFileError when there is none."""

    @abstractmethod
    def load(self, name: str) -> npt.NDArray[np.float32]:
        """Tensor `name` as a new float32 array.  Raises ModelFileError when there is none."""

    def group_form(self, name: str) -> GroupForm | None:
        """How tensor `name` is quantised; None: in no way, or not in groups.

        Raises ModelFileError when there is none.
        """
        self.shape(name)
        return None

    def load_grouped(self, name: str) -> GroupedWeights | None:
        """Matrix `name` as it is quantised, or None like `group_form`."""
        self.shape(name)
        return None

    @abstractmethod
    def short_form(self, name: str) -> ShortForm | None:
        """What the 16 bits of each number of tensor `name` are; None if it has no such numbers.

        Raises ModelFileError when there is no tensor of that name.
        """

    @abstractmethod
    def view(self, name: str) -> StoredFloats | None:
        """Tensor `name` as its file stores it, if that is as floats; None: it is quantised.

        NOTE: a view of the mapped file where the machine can read it in place.  Raises
        ModelFileError when there is none.
        """

    @abstractmethod
    def close(self) -> None:
        """Unmap the files.  Arrays that were loaded stay valid, and views keep their file."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as float32, computed without loading any."""
        return sum(math.prod(self.shape(name)) for name in self.names()) * _FLOAT32_BYTES

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _missing(self, name: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: has no tensor {ascii(name)}")


class GGUFCheckpoint(Checkpoint):
    """A checkpoint in a GGUF file or split set, whose names are the canonical ones already."""

    kind = "gguf"

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file.path, file.metadata)
        self.file = file
        """For backends that compute on packed blocks."""

    def names(self) -> list[str]:
        return list(self.file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.file.tensors:
            raise self._missing(name)
        return self.file.tensors[name].shape

    def load(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self.file.tensors:
            raise self._missing(name)
        tensor = self.file.tensors[name]
        return dequantize(tensor.raw, tensor.type, tensor.shape)

    def group_form(self, name: str) -> GroupForm | None:
        is_matrix = len(self.shape(name)) == 2
        return group_form(self.file.tensors[name].type) if is_matrix else None

    def load_grouped(self, name: str) -> GroupedWeights | None:
        if self.group_form(name) is None:
            return None
        tensor = self.file.tensors[name]
        rows, columns = tensor.shape
        return group_weights(tensor.raw, tensor.type, (rows, columns))

    def short_form(self, name: str) -> ShortForm | None:
        self.shape(name)
        return short_form_of(self.file.tensors[name].type)

    def view(self, name: str) -> StoredFloats | None:
        self.shape(name)
        tensor = self.file.tensors[name]
        return view_floats(tensor.raw, tensor.type, tensor.shape)

    def close(self) -> None:
        self.file.close()


class HuggingFaceCheckpoint(Checkpoint):
    """A checkpoint in a folder with `config.json` and safetensors files."""

    kind = "huggingface"

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        folder: SafetensorsFolder,
        file_names: Mapping[str, str],
    ) -> None:
        super().__init__(path, metadata)
        self._folder = folder
        self._file_names = file_names
        """canonical name -> name in the files"""

    def names(self) -> list[str]:
        return list(self._file_names)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._file_names:
            raise self._missing(name)
        return self._folder.shape(self._file_names[name])

    def load(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self._file_names:
            raise self._missing(name)
        return self._folder.load(self._file_names[name])

    def short_form(self, name: str) -> ShortForm | None:
        self.shape(name)
        return short_form_of(self._folder.type(self._file_names[name]))

    def view(self, name: str) -> StoredFloats | None:
        shape, file_name = self.shape(name), self._file_names[name]
        return view_floats(self._folder.raw(file_name), self._folder.type(file_name), shape)

    def close(self) -> None:
        self._folder.close()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the model at `path`: a GGUF file, or a folder with one model in it.

    A folder holds a Hugging Face checkpoint (which wins over GGUF files beside it), or one GGUF
    file, or one split set.  Raises ModelFileError in one line when it does not, or when what it
    holds is damaged.
    """
    try:
        is_folder = path.is_dir()
        exists = is_folder or path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{ascii(str(path))}: cannot be read: {error}") from None
    if not exists:
        raise ModelFileError(f"{path}: there is no such file or folder")
    if is_folder:
        return _open_folder(path)
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise ModelFileError(f"{path}: pickle files are not loaded; use GGUF or safetensors")
    if path.suffix.lower() == ".safetensors":
        raise ModelFileError(f"{path}: name the folder that holds it, with its config.json")
    return GGUFCheckpoint(GGUFFile.open(path))


def _open_folder(folder: Path) -> Checkpoint:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.is_dir())
    except OSError as error:
        raise ModelFileError(f"{folder}: cannot be read: {error.strerror}") from None
    if SINGLE_FILE in names or INDEX_FILE in names:
        return _open_hugging_face(folder)
    models = _gguf_models(names)
    if len(models) == 1:
        return GGUFCheckpoint(GGUFFile.open(folder / models[0]))
    if models:
        raise ModelFileError(f"{folder}: holds several models; name one of {', '.join(models)}")
    if any(Path(name).suffix.lower() in _PICKLE_SUFFIXES for name in names):
        raise ModelFileError(
            f"{folder}: holds only pickle weights; pickle files are not loaded, "
            "use GGUF or safetensors"
        )
    raise ModelFileError(
        f"{folder}: holds no model: neither a .gguf file nor {SINGLE_FILE} or {INDEX_FILE}"
    )


def _gguf_models(names: list[str]) -> list[str]:
    """One file name per model: of a split set, the first part that is there."""
    models: dict[str, str] = {}
    for name in names:
        # A multimodal projector lies beside the model it belongs to and is none itself.
        if not name.lower().endswith(".gguf") or name.lower().startswith("mmproj"):
            continue
        part = part_of_set(name)
        models.setdefault(name if part is None else f"{part[0]} of {part[2]}", name)
    return list(models.values())


def _open_hugging_face(path: Path) -> HuggingFaceCheckpoint:
    metadata: dict[str, Any] = {
        "config": read_json_object(path / "config.json", max_bytes=_MAX_CONFIG_BYTES)
    }
    for name, file_name in _OPTIONAL_CONFIGS.items():
        if (path / file_name).is_file():
            metadata[name] = read_json_object(path / file_name)
    folder = SafetensorsFolder.open(path)
    try:
        return HuggingFaceCheckpoint(path, metadata, folder, _canonical_names(path, folder))
    except BaseException:
        folder.close()
        raise


def _canonical_names(path: Path, folder: SafetensorsFolder) -> dict[str, str]:
    file_names: dict[str, str] = {}
    for file_name in folder.names():
        try:
            name = canonical_name(file_name)
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error}") from None
        if name in file_names:
            raise ModelFileError(f"{path}: tensor {name} is there twice, as {ascii(file_name)} too")
        if name is not None:
            file_names[name] = file_name
    return file_names
