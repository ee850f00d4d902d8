"""The pre-tokenizer of each `tokenizer.ggml.pre` name: how text is cut before byte-level BPE.

A table of data.  Each name stands for regular expressions that are applied one after the other;
matches and the gaps between them both become pieces.  Three facts go with a name: whether a piece
that is itself a token skips the merges, and whether BOS is added when the file does not say.
The expressions are those of the models' own tokenizer files, in Oniguruma syntax.
"""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.errors import ModelFileError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_WORD = r"[^\r\n\p{L}\p{N}]"
_CASED_WORDS = (f"{_NOT_WORD}?{_UPPER}*{_LOWER}+", f"{_NOT_WORD}?{_UPPER}+{_LOWER}*")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN35 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
)
_SEED_CODER = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _TAIL
_TEKKEN = "|".join(_CASED_WORDS) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_GPT4O = (
    "|".join(f"{word}{_CONTRACTION}?" for word in _CASED_WORDS)
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _TAIL
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL
)
_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
# Cased letters without those that this tokenizer's own list of ranges leaves out.
_UNLISTED = (
    r"\x{0560}-\x{0588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8A}\x{2D00}-\x{2D2D}\x{A790}-\x{AB68}"
    r"\x{10570}-\x{105BC}\x{10D50}-\x{10D85}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DF2A}"
)
_CASED = rf"\s?[[\p{{Lu}}\p{{Ll}}\p{{Lt}}]&&[^{_UNLISTED}]]+"
_DEEPSEEK_PUNCTUATION = (
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """How one family of byte-level BPE vocabularies cuts text."""

    patterns: tuple[str, ...]
    """Applied in this order, each to the pieces that the one before left."""
    ignore_merges: bool = False
    """A piece that is a token as it stands is taken whole, even if no merges lead to it."""
    add_bos: bool = False
    """Whether BOS is added if the file does not say."""


_DIGITS_THEN_GPT2 = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizer(patterns=(_GPT2,))
_LLAMA3_PLAIN = PreTokenizer(patterns=(_LLAMA3,))
_LLAMA3_BOS = PreTokenizer(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_PLAIN = PreTokenizer(patterns=(_QWEN2,))
_GPT4O_PLAIN = PreTokenizer(patterns=(_GPT4O,))
_DEEPSEEK_V3 = PreTokenizer(
    patterns=(r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+", _DEEPSEEK_V3_WORDS)
)
_BLOOM_PLAIN = PreTokenizer(patterns=(_BLOOM,))
_BAILING_PLAIN = PreTokenizer(patterns=(_BAILING,))

_GROUPS: tuple[tuple[PreTokenizer, tuple[str, ...]], ...] = (
    # What a file means that names no pre-tokenizer: the format's own fallback.
    (
        PreTokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        ("default",),
    ),
    (
        _PLAIN_GPT2,
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4")
        + ("gigachat", "a.x-4.0", "mellum"),
    ),
    (
        _DIGITS_THEN_GPT2,
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
        + ("mellum2",),
    ),
    (_LLAMA3_PLAIN, ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe")),
    (
        _LLAMA3_BOS,
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    (
        _QWEN2_PLAIN,
        ("qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan", "megrez", "solar-open", "grok-2")
        + ("kormo", "f2llmv2"),
    ),
    (PreTokenizer(patterns=(_QWEN35,)), ("qwen35",)),
    (PreTokenizer(patterns=(_SEED_CODER,)), ("seed-coder",)),
    (PreTokenizer(patterns=(_TEKKEN,), ignore_merges=True, add_bos=True), ("tekken",)),
    (_GPT4O_PLAIN, ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")),
    (
        PreTokenizer(patterns=(r"[\r\n]", _CASED, _DEEPSEEK_PUNCTUATION, r"\s+$", _CJK, r"\p{N}")),
        ("deepseek-llm",),
    ),
    (
        PreTokenizer(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
        ("deepseek-coder",),
    ),
    (_DEEPSEEK_V3, ("deepseek-v3", "hunyuan-dense", "joyai-llm")),
    (
        PreTokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
        ("falcon",),
    ),
    (_BAILING_PLAIN, ("bailingmoe", "bailingmoe2", "llada-moe")),
    (_BLOOM_PLAIN, ("bloom", "poro-chat", "gpt3-finnish")),
    (PreTokenizer(patterns=(_BLOOM, r"\p{N}")), ("viking",)),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: pre_tokenizer for pre_tokenizer, names in _GROUPS for name in names
}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer called `name` in GGUF files.

    Raises ModelFileError for a name that is not in the table: cutting text in another way than
    the model was trained with gives worse answers without a word, so nothing is guessed.
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelFileError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not supported; use a model"
            f" with one of: {known}"
        ) from None
