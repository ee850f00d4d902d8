"""The checks of real clients: their headers, their page in the docs, and one of them each day.

`scripts/clients` runs the others, which are too large to be installed on every change.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from clients.chairlift_process import chairlift_process
from clients.client_check import ClientCheck, all_checks, split_pin
from clients.client_environment import ClientEnvironment, NotInstalled
from clients.run_clients import ClientResult, run_check

ROOT = Path(__file__).parents[2]
DAILY = "openai-python"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.real_model
@pytest.mark.timeout(600)
def test_openai_python_passes(tmp_path: Path) -> None:
    check = all_checks()[DAILY]
    package, pinned = split_pin(check.packages[0])
    assert version(package) == pinned, "pyproject.toml pins another version than the check"
    with chairlift_process(check.serve_options, tmp_path / "server.log") as server:
        result = run_check(check, [sys.executable, str(check.path)], server, tmp_path)
    assert result.is_good, result.failed


@pytest.mark.parametrize("check", all_checks().values(), ids=lambda check: check.name)
def test_docs_list_every_client_in_its_version(check: ClientCheck) -> None:
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert f"| `{check.name}` | {check.versions} |" in text


@pytest.mark.parametrize(
    "text",
    [
        "print()\n",
        "# /// script\n# dependencies = []\n# ///\n",
        '# /// script\n# dependencies = ["openai"]\n# ///\n',
        '# /// script\n# dependencies = ["openai==1.0"]\n# requires = "x"\n# ///\n',
        '# /// script\n# dependencies = ["a==1"]\n# [tool.client]\n# port = 1\n# ///\n',
    ],
)
def test_header_that_says_too_little_or_too_much(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="header|pinned"):
        ClientCheck.read(write(tmp_path, "check_some_client.py", text))


def test_header_of_another_language(tmp_path: Path) -> None:
    text = '// /// script\n// dependencies = ["@a/b-c@1.2.3"]\n// ///\n'
    check = ClientCheck.read(write(tmp_path, "check_b_c.mjs", text))
    assert (check.name, check.versions, check.is_python) == ("b-c", "@a/b-c 1.2.3", False)


def test_client_that_cannot_be_had_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '# /// script\n# dependencies = ["pytest==0.0.1"]\n# ///\n'
    check = ClientCheck.read(write(tmp_path, "check_old_pytest.py", text))
    monkeypatch.setenv("CHAIRLIFT_CLIENT_OLD_PYTEST", sys.prefix)
    with pytest.raises(NotInstalled, match=r"not 0\.0\.1"):
        ClientEnvironment(check, tmp_path).install(print)
    result = ClientResult(check, (), ("cannot be installed here",))
    assert not result.is_good and "FAILED: cannot be installed here" in result.row()


def test_check_without_a_promise_has_not_passed(tmp_path: Path) -> None:
    path = write(tmp_path, "check_x.py", '# /// script\n# dependencies = ["a==1"]\n# ///\n')
    assert not ClientResult(ClientCheck.read(path), (), ()).is_good
