"""The default model's tokenizer as a folder, for load generators that count tokens themselves."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers.decoders import ByteLevel

from chairlift.tokenizer.gguf_vocabulary import load_gguf_vocabulary
from chairlift.weights.gguf import GGUFFile
from chairlift.weights.model_source import DEFAULT_MODEL, resolve_model


def write_tokenizer(folder: Path) -> Path:
    """The folder, in the layout of Hugging Face."""
    folder.mkdir(parents=True, exist_ok=True)
    with GGUFFile.open(resolve_model(DEFAULT_MODEL, progress=False)) as file:
        spec = load_gguf_vocabulary(file.metadata, ())
    spec.backend.decoder = ByteLevel()  # the package decodes by itself; these readers do not
    spec.backend.save(str(folder / "tokenizer.json"))
    ends = [spec.vocabulary.piece(i) for i in (spec.bos_id, spec.eos_id) if i is not None]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": ends[0],
        "eos_token": ends[-1],
        "chat_template": spec.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
