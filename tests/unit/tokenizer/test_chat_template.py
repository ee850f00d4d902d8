from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from chairlift.errors import RequestError
from chairlift.tokenizer.chat_template import ChatTemplate

CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
DOUBLE = "{%% set n = namespace(s='x') %%}{%% for i in range(60) %%}%s{%% endfor %%}"
USER = [{"role": "user", "content": "Hi <b>ě</b>"}]


def make(source: str | None, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **options)


def render(source: str, messages: Any = None, **kwargs: Any) -> str:
    return make(source).render(USER if messages is None else messages, **kwargs)


def failure(source: str | None, messages: Any = None, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        make(source, **options).render(USER if messages is None else messages)
    assert "\n" not in str(raised.value)
    return raised.value


def test_messages_become_a_prompt() -> None:
    opened = "<|im_start|>user\nHi <b>ě</b><|im_end|>\n"
    assert render(CHATML) == opened + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == opened


def test_white_space_of_block_tags_is_trimmed() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "user\n"


def test_text_parts_are_joined_by_line_ends() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"


def test_tokens_tools_and_further_variables_reach_the_template() -> None:
    source = "{{ bos_token }}{{ tools[0].name }}{{ enable_thinking }}{{ eos_token }}"
    assert render(source, tools=[{"name": "f"}], enable_thinking=False) == "<s>fFalse</s>"
    assert render("{{ tools is none }}{{ documents is none }}") == "TrueTrue"


@pytest.mark.parametrize("name", ["messages", "bos_token", "eos_token"])
def test_variables_of_the_server_cannot_be_replaced(name: str) -> None:
    variables: dict[str, Any] = {name: "x"}
    with pytest.raises(RequestError, match=name) as raised:
        make(CHATML).render(USER, **variables)
    assert raised.value.field == name


def test_tojson_keeps_letters_and_markup() -> None:
    assert render("{{ messages[0]|tojson }}") == '{"role": "user", "content": "Hi <b>ě</b>"}'
    assert render("{{ {'a': 1}|tojson(indent=2) }}") == '{\n  "a": 1\n}'


def test_loop_controls_and_generation_blocks_work() -> None:
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source) == "01"
    assert render("{% generation %}{{ messages[0].role }}!{% endgeneration %}") == "user!"


def test_date_comes_from_the_given_clock() -> None:
    template = make("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert template.render(USER) == "26 Jul 2024"


def test_joining_by_tilde_keeps_its_meaning() -> None:
    assert render("{{ 'a' ~ 1 ~ none ~ missing ~ messages[0].role }}") == "a1Noneuser"


def test_refusal_of_the_template_is_told() -> None:
    error = failure("{{ raise_exception('roles must alternate\nplease') }}")
    assert "refuses the messages: roles must alternate please" in str(error)
    assert error.field == "messages"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "broken at line 1"),
        ("\n{{ x", "broken at line 2"),
        ("{{ messages[0].no.such }}", "UndefinedError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "TypeError|no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ range(10**9) }}", "OverflowError"),
    ],
)
def test_failure_of_the_template_is_a_request_error(source: str, words: str) -> None:
    error = failure(source)
    assert any(word in str(error) for word in words.split("|"))
    assert error.field == "messages"


def test_model_without_template_says_so() -> None:
    error = failure(None)
    assert "no chat template" in str(error) and error.field == "messages"


def test_broken_template_fails_at_use_and_not_before() -> None:
    make("{% if %}")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        (["Hi"], "messages[0]"),
        ([*USER, {"content": "x"}], "messages[1].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([*USER, {"role": "user", "content": None}], "messages[1].content"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0]",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
    ],
)
def test_malformed_message_is_named(messages: Any, field: str) -> None:
    error = failure(CHATML, messages)
    assert error.field == field
    assert str(error).startswith(field)


def test_tool_calls_need_no_content_and_keep_their_fields() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    source = "{{ messages[0].tool_calls[0].id }}[{{ messages[0].content }}]"
    assert render(source, [message]) == "c1[]"
    assert message["content"] is None


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    ],
)
def test_endless_template_meets_its_deadline(source: str) -> None:
    started = time.monotonic()
    error = failure(source, max_render_s=0.05)
    assert "takes too long" in str(error) and error.field == "messages"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{{ 'x' }}{% endfor %}",
        "{{ 'x' * 10**12 }}",
        "{{ 10**12 * ['x'] }}",
        "{{ 10**(10**9) }}",
        DOUBLE % "{% set n.s = n.s + n.s %}",
        DOUBLE % "{% set n.s = n.s ~ n.s %}",
        DOUBLE % "{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}",
    ],
)
def test_template_cannot_build_without_bound(source: str) -> None:
    error = failure(source, max_output_chars=10_000)
    assert "more than 10000 characters" in str(error) and error.field == "messages"


def test_deadline_is_per_render() -> None:
    template = make(CHATML, max_render_s=0.2)
    template.render(USER)
    time.sleep(0.25)
    assert template.render(USER).endswith("assistant\n")


def test_threads_share_one_template() -> None:
    template = make(CHATML)
    messages = [[{"role": "user", "content": str(n)}] for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(template.render, messages))
    assert results == [make(CHATML).render(one) for one in messages]


def test_a_template_tells_which_variables_it_reads() -> None:
    source = "{% set mine = 1 %}{% macro show(x) %}{{ tools }}{{ x }}{% endmacro %}{{ mine }}"
    template = ChatTemplate(source + " words about documents", bos_token="", eos_token="")
    assert template.reads("tools")
    assert not template.reads("mine") and not template.reads("documents")
    assert not ChatTemplate(None, bos_token="", eos_token="").reads("tools")
