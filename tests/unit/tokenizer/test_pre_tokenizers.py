from __future__ import annotations

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from chairlift.errors import ModelFileError
from chairlift.tokenizer.pre_tokenizers import PRE_TOKENIZERS, find_pre_tokenizer

TEXT = "They'RE 12345 €5\n\n  x\t--ok čÚ ไทย 中文かな"


def cut(name: str, text: str) -> list[str]:
    splits = [Split(Regex(p), "isolated") for p in find_pre_tokenizer(name).patterns]
    return [piece for piece, _ in Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pattern_compiles_and_loses_no_text(name: str, texts: list[str]) -> None:
    for text in [TEXT, *texts]:
        assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "They'RE 12345", ["They", "'", "RE", " 12345"]),
        ("gpt-2", "it's  \n x", ["it", "'s", "  \n", " x"]),
        ("smollm", "in 1234!", ["in", " ", "1", "2", "3", "4", "!"]),
        ("starcoder", "½ 7", ["½", " ", "7"]),
        ("llama-bpe", "They'RE 12345", ["They", "'RE", " ", "123", "45"]),
        ("llama-bpe", "a\n\n  b();\n", ["a", "\n\n", " ", " b", "();\n"]),
        ("llama-bpe", "#x #!x", ["#x", " #!", "x"]),
        ("qwen2", "They'RE 123", ["They", "'RE", " ", "1", "2", "3"]),
        ("stablelm2", "x 42", ["x", " ", "4", "2"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("tekken", "a://b", ["a", "://", "b"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("gpt-4o", "HTTPServer", ["HTTPServer"]),
        ("deepseek-llm", "Hi, 中文 12\nx", ["Hi", ",", " ", "中文", " ", "1", "2", "\n", "x"]),
        ("deepseek-llm", "a 𝐀", ["a", " 𝐀"]),
        ("deepseek-coder", "x = 12;", ["x", " = ", "1", "2", ";"]),
        ("deepseek-v3", "x=1234 中文a", ["x", "=", "123", "4", " ", "中文", "a"]),
        ("falcon", "ab 12345!", ["ab", " ", "123", "45", "!"]),
        ("default", "ab 12345", ["ab", " ", "123", "45"]),
        ("bloom", "one, two", ["one", ",", " two"]),
    ],
)
def test_families_cut_as_their_models_were_trained(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match="'nope'.*gpt-2.*smollm.*tekken"):
        find_pre_tokenizer("nope")
