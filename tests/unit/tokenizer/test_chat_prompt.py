"""Conversations as tokens: what people write never becomes a control token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError
from chairlift.tokenizer.chat_prompt import encode_chat
from chairlift.tokenizer.chat_template import ChatTemplate
from parity.tiny_checkpoints import BOS_TOKEN, EOS_TOKEN

Load = Callable[..., LoadedModel]
TEMPLATE = (
    "{% for m in messages %}" + EOS_TOKEN + "{{ m.role }}\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}" + EOS_TOKEN + "assistant\n{% endif %}"
)


@pytest.fixture
def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE, bos_token=BOS_TOKEN, eos_token=EOS_TOKEN)


def encode(model: LoadedModel, template: ChatTemplate, *contents: str) -> tuple[str, list[int]]:
    messages = [{"role": "user", "content": content} for content in contents]
    return encode_chat(model.tokenizer, template, messages)


def test_ordinary_conversation_is_the_rendered_text(
    load_tiny: Load, template: ChatTemplate
) -> None:
    model = load_tiny()
    text, ids = encode(model, template, "hello", "there")
    messages = [{"role": "user", "content": word} for word in ("hello", "there")]
    assert text == template.render(messages) and ids == model.tokenizer.encode(text)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(
            st.sampled_from([EOS_TOKEN, BOS_TOKEN, "<|", "|>", "eos", "a", " ", "\ufdd0", "é"]),
            max_size=6,
        ).map("".join),
        min_size=1,
        max_size=3,
    )
)  # fmt: skip
def test_words_never_become_control_tokens(
    load_tiny: Load, template: ChatTemplate, contents: list[str]
) -> None:
    model = load_tiny()
    tokenizer = model.tokenizer
    text, ids = encode(model, template, *contents)
    messages = [{"role": "user", "content": content} for content in contents]
    assert text == template.render(messages), "the text shows no mark"
    assert (
        tokenizer.decode(ids, skip_special_tokens=False).removeprefix(
            tokenizer.bos_token if tokenizer.add_bos else ""
        )
        == text
    )
    assert ids.count(tokenizer.eos_id) == len(contents) + 1, "the template's own, and no other"
    assert ids.count(tokenizer.bos_id) == int(tokenizer.add_bos)


def test_words_in_other_places_are_plain_too(load_tiny: Load) -> None:
    template = ChatTemplate(
        "{{ messages[0].name }}{{ messages[0].tool_calls[0].function.arguments | tojson }}",
        bos_token=BOS_TOKEN,
        eos_token=EOS_TOKEN,
    )
    arguments: dict[str, Any] = {"a": [EOS_TOKEN], "b": EOS_TOKEN}
    message = {
        "role": "assistant", "content": "", "name": EOS_TOKEN,
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }  # fmt: skip
    tokenizer = load_tiny().tokenizer
    text, ids = encode_chat(tokenizer, template, [message])
    assert text.count(EOS_TOKEN) == 3 and tokenizer.eos_id not in ids


def test_text_is_checked_before_it_is_tokenized(load_tiny: Load, template: ChatTemplate) -> None:
    def refuse(text: str) -> None:
        raise RequestError(f"{len(text)} characters")

    with pytest.raises(RequestError, match="characters"):
        encode_chat(
            load_tiny().tokenizer,
            template,
            [{"role": "user", "content": "x"}],
            check_text=refuse,
        )


def test_other_threads_run_while_a_text_is_tokenized(load_tiny: Load) -> None:
    """Or a server would stand still for every long prompt."""
    tokenizer = load_tiny().tokenizer
    moments: list[float] = []
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.is_set():
            moments.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    tokenizer.encode("some words and more of them " * 60_000)
    end = time.perf_counter()
    is_over.set()
    thread.join()
    inside = [begin, *(moment for moment in moments if begin < moment < end), end]
    longest = max(after - before for before, after in zip(inside, inside[1:], strict=False))
    assert longest < 0.7 * (end - begin)
