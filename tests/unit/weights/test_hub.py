"""Hub models with the client's functions replaced: no network."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from chairlift.errors import ModelSourceError
from chairlift.weights.hub import HubName, fetch_from_hub, parse_hub_name, select_files

GGUF_FILES = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-Q8_0.gguf",
    "mmproj-model-F16.gguf",
    "BF16/model-BF16-00001-of-00002.gguf",
    "BF16/model-BF16-00002-of-00002.gguf",
    "model-IQ4_XS.gguf",
]
CHECKPOINT_FILES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "consolidated.safetensors",
    "pytorch_model.bin",
    "onnx/model.onnx",
]


def hub_name(label: str | None = None) -> HubName:
    return HubName(repository="org/name", label=label)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("Qwen/Qwen2.5-0.5B-Instruct", ("Qwen/Qwen2.5-0.5B-Instruct", None)),
        ("org/name:Q4_K_M", ("org/name", "Q4_K_M")),
        ("org/name:sub/file.gguf", ("org/name", "sub/file.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("org/name:", None),
        ("org/na me", None),
        ("../name", None),
        ("org/..", None),
        ("org/a..b", None),
        ("-org/name", None),
        ("", None),
    ],
)
def test_parsing(text: str, expected: tuple[str, str | None] | None) -> None:
    parsed = parse_hub_name(text)
    assert (parsed and (parsed.repository, parsed.label)) == expected


@pytest.mark.parametrize(
    ("label", "files"),
    [
        ("Q8_0", ["model-Q8_0.gguf"]),
        ("q4_k_m", ["model-Q4_K_M.gguf"]),
        ("iq4_xs", ["model-IQ4_XS.gguf"]),
        ("bf16", ["BF16/model-BF16-00001-of-00002.gguf", "BF16/model-BF16-00002-of-00002.gguf"]),
        ("model-Q8_0.gguf", ["model-Q8_0.gguf"]),
        (None, ["model-Q4_K_M.gguf"]),
    ],
)
def test_selecting_a_gguf_model(label: str | None, files: list[str]) -> None:
    selection = select_files(hub_name(label), GGUF_FILES)
    assert list(selection.files) == files
    assert selection.gguf == files[0]


@pytest.mark.parametrize(
    "part", ["model-BF16-00002-of-00002.gguf", "BF16/model-BF16-00001-of-00002.gguf"]
)
def test_naming_a_part_selects_the_set(part: str) -> None:
    selection = select_files(hub_name(part), GGUF_FILES)
    assert len(selection.files) == 2
    assert selection.gguf == "BF16/model-BF16-00001-of-00002.gguf"


@pytest.mark.parametrize("label", ["Q5_0", "Q4", "Q4_K", "other.gguf", "IQ4"])
def test_a_label_that_is_not_there_lists_the_choices(label: str) -> None:
    with pytest.raises(ModelSourceError) as caught:
        select_files(hub_name(label), GGUF_FILES)
    assert str(caught.value) == (
        f"org/name has no {label}; choose one of BF16, IQ4_XS, Q4_K_M, Q8_0"
    )


def test_a_label_that_fits_several_files() -> None:
    files = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
    with pytest.raises(ModelSourceError, match=r"fits several files; name one: a-Q8_0\.gguf, b-"):
        select_files(hub_name("Q8_0"), files)


def test_a_checkpoint_takes_its_own_files_only() -> None:
    selection = select_files(hub_name(), CHECKPOINT_FILES)
    assert selection.gguf is None
    assert list(selection.files) == CHECKPOINT_FILES[1:9]


@pytest.mark.parametrize(
    ("files", "label", "expected"),
    [
        (["only-IQ2_XS.gguf"], None, ("only-IQ2_XS.gguf",)),
        (["unlabelled.gguf", "README.md"], None, ("unlabelled.gguf",)),
        (["m-Q8_0.gguf", "m-Q5_0.gguf"], None, ("m-Q8_0.gguf",)),
        (["m.Q6_K.gguf", "m.Q2_K.gguf"], None, ("m.Q6_K.gguf",)),
        (["Q2-7b-chat.Q4_0.gguf", "Q2-7b-chat.Q5_0.gguf"], "q4_0", ("Q2-7b-chat.Q4_0.gguf",)),
        (["m-UD-Q4_K_XL.gguf", "m-UD-Q2_K.gguf"], "q4_k_xl", ("m-UD-Q4_K_XL.gguf",)),
    ],
)
def test_defaults_and_odd_names(
    files: list[str], label: str | None, expected: tuple[str, ...]
) -> None:
    assert select_files(hub_name(label), files).files == expected


@pytest.mark.parametrize(
    ("files", "label", "expected"),
    [
        (["m-IQ2_XS.gguf", "m-IQ1_S.gguf"], None, "one of IQ1_S, IQ2_XS$"),
        (["pytorch_model.bin", "config.json"], None, "pickle files are not loaded"),
        (["README.md"], None, "neither GGUF nor safetensors"),
        (["m-Q8_0-00001-of-00002.gguf"], None, "neither GGUF nor safetensors"),
        (["model.safetensors", "config.json"], "Q8_0", "holds no GGUF files, so leave out :Q8_0"),
    ],
)
def test_repositories_without_one_model(files: list[str], label: str | None, expected: str) -> None:
    with pytest.raises(ModelSourceError, match=expected):
        select_files(hub_name(label), files)


class FakeHub:
    """A repository of empty files, 'downloaded' into a folder."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.folder = folder
        self.files = files
        self.listing_error: Exception | None = None
        self.download_error: Exception | None = None
        self.bars_disabled: bool | None = None

    def model_info(self, repository: str, *, timeout: float) -> Any:
        assert repository == "org/name"
        assert timeout < 60
        if self.listing_error:
            raise self.listing_error
        siblings = [SimpleNamespace(rfilename=file) for file in self.files]
        return SimpleNamespace(siblings=siblings)

    def snapshot_download(
        self,
        repository: str,
        *,
        allow_patterns: list[str] | None = None,
        local_files_only: bool = False,
    ) -> str:
        assert repository == "org/name"
        self.bars_disabled = are_progress_bars_disabled()
        if self.download_error:
            raise self.download_error
        for file in self.files:
            if allow_patterns and any(fnmatch.fnmatch(file, one) for one in allow_patterns):
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / file).touch()
        return str(self.folder)


@pytest.fixture
def make_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], FakeHub]:
    def make(files: list[str]) -> FakeHub:
        hub = FakeHub(tmp_path / "snapshot", files)
        monkeypatch.setattr(huggingface_hub, "model_info", hub.model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
        return hub

    return make


def response(status: int) -> Any:
    return SimpleNamespace(headers={}, request=None, status_code=status)


def test_a_gguf_model_is_fetched(
    make_hub: Callable[[list[str]], FakeHub], capsys: pytest.CaptureFixture[str]
) -> None:
    hub = make_hub([*GGUF_FILES, "model-[x]-Q2_K.gguf"])
    path = fetch_from_hub(hub_name("Q2_K"), progress=True)
    assert path == hub.folder / "model-[x]-Q2_K.gguf"
    assert [entry.name for entry in hub.folder.rglob("*.gguf")] == [path.name]
    assert capsys.readouterr().err == "Fetching org/name ...\n"


def test_a_checkpoint_is_fetched_as_a_folder_and_quietly(
    make_hub: Callable[[list[str]], FakeHub], capsys: pytest.CaptureFixture[str]
) -> None:
    hub = make_hub(CHECKPOINT_FILES)
    assert fetch_from_hub(hub_name(), progress=False) == hub.folder
    assert (hub.folder / "model-00002-of-00002.safetensors").exists()
    assert hub.bars_disabled
    assert not are_progress_bars_disabled()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            errors.GatedRepoError("a\nb", response=response(403)),
            "org/name is gated: accept its licence on its page and set HF_TOKEN",
        ),
        (errors.RepositoryNotFoundError("a\nb", response=response(401)), "was not found"),
        (errors.HFValidationError("bad"), "is not a valid repository name"),
        (errors.LocalEntryNotFoundError("no"), "the hub cannot be reached"),
        (errors.OfflineModeIsEnabled("off"), "the hub cannot be reached"),
        (ConnectionResetError("reset"), "the hub cannot be reached"),
        (errors.HfHubHTTPError("500\nServer Error", response=response(500)), "500 Server Error"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError(), "the download failed: RuntimeError"),
    ],
)
@pytest.mark.parametrize("where", ["listing_error", "download_error"])
def test_the_clients_errors_become_one_line(
    make_hub: Callable[[list[str]], FakeHub], where: str, error: Exception, expected: str
) -> None:
    hub = make_hub(GGUF_FILES)
    setattr(hub, where, error)
    if where == "listing_error":
        hub.download_error = errors.LocalEntryNotFoundError("nothing cached")
    with pytest.raises(ModelSourceError, match=expected) as caught:
        fetch_from_hub(hub_name("Q8_0"), progress=False)
    assert "\n" not in str(caught.value)
    assert not are_progress_bars_disabled()


@pytest.mark.parametrize("client_says_incomplete", [False, True])
def test_without_a_connection_the_cache_serves(
    make_hub: Callable[[list[str]], FakeHub], client_says_incomplete: bool
) -> None:
    hub = make_hub(GGUF_FILES)
    fetched = fetch_from_hub(hub_name("Q8_0"), progress=False)
    hub.listing_error = ConnectionError("no route")
    if client_says_incomplete:
        partial = errors.LocalEntryNotFoundError("incomplete")
        partial.snapshot_path = str(hub.folder)  # type: ignore[attr-defined]
        hub.download_error = partial
    assert fetch_from_hub(hub_name("Q8_0"), progress=False) == fetched
    with pytest.raises(
        ModelSourceError, match="cannot be reached, .* has no Q4_K_M; choose one of Q8_0"
    ):
        fetch_from_hub(hub_name("Q4_K_M"), progress=False)


def test_an_incomplete_download_is_said(
    make_hub: Callable[[list[str]], FakeHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = make_hub(GGUF_FILES)
    hub.folder.mkdir()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(hub.folder))
    with pytest.raises(ModelSourceError, match=r"incomplete, model-Q8_0\.gguf is missing"):
        fetch_from_hub(hub_name("Q8_0"), progress=False)
