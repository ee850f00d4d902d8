"""Compiling: what is kept, what is refused, and what is ended because it would not end."""

from __future__ import annotations

import gc
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits

import chairlift.grammar.parser_limits as parser_limits_module
from chairlift.errors import RequestError
from chairlift.grammar.compile_trial import TOO_MUCH, CompileTrial
from chairlift.grammar.grammar_compiler import GrammarCompiler
from chairlift.grammar.parser_limits import GrammarError, parser_limits
from chairlift.grammar.token_matcher import MAX_SHARED_TOKENS, TokenMatcher
from chairlift.grammar.trial_process import packed_tokens, unpacked_tokens
from chairlift.structured_outputs import StructuredOutputsParams
from chairlift.tokenizer.tokenizer import Tokenizer

VOCAB_SIZE = 300
"""Of a head with more rows than there are tokens."""
RUNAWAYS: dict[str, dict[str, Any]] = {
    "intersection": {
        "json": {
            "allOf": [{"type": "string", "pattern": f"^(a|b)*{'.' * i}$"} for i in range(60)],
        }
    },
    "remainder": {"json": {"type": "integer", "multipleOf": 1_000_003}},
    "lark": {
        "grammar": "start: X\nX: " + " & ".join(f"/(.*a.{{{i}}}.*)/" for i in range(1, 60)),
    },
}


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Callable[[str], Path]) -> Tokenizer:
    return Tokenizer.from_huggingface(tiny_folder("llama3"))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB_SIZE)


def allowed(matcher: TokenMatcher) -> list[int]:
    mask = matcher.compute_mask()
    assert mask.dtype == np.uint32 and mask.shape == (-(-VOCAB_SIZE // 32),)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def test_a_matcher_follows_a_text_byte_by_byte(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(StructuredOutputsParams(choice=["ab", "añ"]))
    matcher, other = grammar.new_matcher(), grammar.new_matcher()
    a, b, *letter = tokenizer.encode("abñ", add_special_tokens=False)
    assert allowed(matcher) == [a]
    matcher.accept(a)
    assert allowed(matcher) == sorted([b, letter[0]])
    matcher.accept(letter[0])
    matcher.accept(letter[1])
    assert allowed(matcher) == sorted(tokenizer.eos_ids)
    assert allowed(other) == [a], "the other one has not moved"
    other.accept(b)
    with pytest.raises(GrammarError):
        other.compute_mask()


def test_what_was_compiled_is_kept_by_bytes(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, VOCAB_SIZE, max_cache_bytes=3 * 270_000)
    params = [StructuredOutputsParams(choice=[text]) for text in "abcd"]
    first = [compiler.compile(one) for one in params[:3]]
    assert compiler.compile(StructuredOutputsParams(choice=["a"])) is first[0]
    compiler.compile(params[3])
    assert compiler.compile(params[0]) is first[0], "used last"
    assert compiler.compile(params[1]) is not first[1], "not used for longest"


def test_a_text_fails_by_its_own_states_only(
    compiler: GrammarCompiler, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are shared: those of one text must not be the end of another."""
    limits = parser_limits()
    few = LLParserLimits(
        initial_lexer_fuel=limits.initial_lexer_fuel, max_lexer_states=400, verbose_errors=False
    )
    monkeypatch.setattr(parser_limits_module, "parser_limits", lambda: few)
    params = StructuredOutputsParams(regex="(.*a.{30}){30}")
    grammar = compiler.compile(params)

    def write(matcher: TokenMatcher, text: str) -> int:
        """Tokens until it fails."""
        for index, token_id in enumerate(tokenizer.encode(text, add_special_tokens=False)):
            try:
                assert token_id in allowed(matcher)
            except GrammarError as error:
                assert "states" in str(error)
                return index
            matcher.accept(token_id)
        return len(text)

    alone = write(
        compiler.compile(StructuredOutputsParams(regex="(.*a.{30}){30}")).new_matcher(), "ab" * 9
    )
    assert alone == 18
    until_failure = [write(grammar.new_matcher(), "aab" * 200) for _ in range(3)]
    assert until_failure[0] < 600 and len(set(until_failure)) == 1
    assert write(grammar.new_matcher(), "ab" * 9) == alone
    assert grammar.is_worn and compiler.compile(params) is not grammar
    assert not compiler.compile(params).is_worn


def test_a_grammar_is_renewed_after_much_use(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    params = StructuredOutputsParams(regex="[ab]*")
    grammar, (a,) = compiler.compile(params), tokenizer.encode("a", add_special_tokens=False)
    matcher = grammar.new_matcher()
    for _ in range(MAX_SHARED_TOKENS):
        assert compiler.compile(params) is grammar
        matcher.accept(a)
    renewed = compiler.compile(params)
    assert renewed is not grammar and compiler.compile(params) is renewed
    assert a in allowed(matcher), "those under way go on"


@pytest.mark.parametrize("name", RUNAWAYS)
def test_what_would_not_end_is_ended_and_remembered(
    compiler: GrammarCompiler, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = StructuredOutputsParams(**RUNAWAYS[name])
    with pytest.raises(RequestError, match=re.escape(TOO_MUCH)) as caught:
        compiler.compile(params)
    assert caught.value.field == f"structured_outputs.{params.kind}"
    compiler.compile(StructuredOutputsParams(regex=f"after {name}"))
    with monkeypatch.context() as patch:
        patch.setattr(CompileTrial, "check", lambda self, text: pytest.fail("tried again"))
        with pytest.raises(RequestError, match=re.escape(TOO_MUCH)):
            compiler.compile(params)


def test_threads_compile_at_once(compiler: GrammarCompiler) -> None:
    found: list[object] = []

    def work(index: int) -> None:
        text = str(index % 4)
        found.append(compiler.compile(StructuredOutputsParams(choice=["thread", text])))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8


def test_the_trial_process_ends_with_its_owner(tokenizer: Tokenizer) -> None:
    trial = CompileTrial(tokenizer)
    trial.check('start: "a"')
    process = trial._process
    assert process is not None and process.poll() is None
    process.kill()
    with pytest.raises(GrammarError, match="too much"):
        trial.check('start: "a"')
    trial.check('start: "a"')
    process = trial._process
    assert process is not None
    del trial
    gc.collect()
    assert process.poll() is not None


def test_tokens_travel_whole() -> None:
    tokens = [b"", b"a", bytes(range(256)), "ü".encode()]
    assert unpacked_tokens(packed_tokens(tokens)) == tokens


def test_a_large_schema_is_no_trouble(compiler: GrammarCompiler) -> None:
    properties = {
        f"p{index}": {"type": "array", "items": {"enum": ["a", f"b{index}"]}, "maxItems": 9}
        for index in range(200)
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)[::2]}
    grammar = compiler.compile(StructuredOutputsParams(json=json.dumps(schema)))
    assert grammar.new_matcher().compute_mask().any()
