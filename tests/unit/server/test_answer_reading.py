"""Which parsers a chat template asks for, told from pieces of templates as models have them."""

from __future__ import annotations

import pytest

from chairlift.server.answer_reading import AnswerReading
from chairlift.tokenizer.chat_template import ChatTemplate

SNIPPETS = {
    "{% if tools %}For each call write <tool_call>\\n{...}\\n</tool_call>{% endif %}": "hermes",
    "{%- if tools is not none %}[AVAILABLE_TOOLS]{% endif %}{{ '[TOOL_CALLS]' }}": "mistral",
    "{% for t in tools %}{% endfor %}<tool_call>\n<function=name>\n<parameter=p>": "qwen3_coder",
    "{% for t in tools %}{% endfor %}<tool_call>{name}\n<arg_key>{key}</arg_key>": "qwen3_coder",
    "{% if tools %}[func_name1(params_name1=params_value1), func_name2()]{% endif %}": "pythonic",
    "{% if tools %}<|tool_list_start|>{% endif %}<|tool_call_start|>": "pythonic",
    '{% if tools %}Answer as {"name": function name, "parameters": ...}{% endif %}': "llama3_json",
    "{% if builtin_tools or tools %}{{ '<|python_tag|>' }}{% endif %}": "llama3_json",
    "{% if tools %}namespace functions{% endif %}<|start|>assistant<|channel|>analysis": "openai",
    "{% if tools %}<|unheard_of|>{% endif %}": None,
    "{{ messages[0].content }}": "hermes",
    "You have no tools at all. {{ messages[0].content }}": "hermes",
}


def reading_of(source: str, tool_parser: str = "auto", reasoning: str = "auto") -> AnswerReading:
    template = ChatTemplate(source, bos_token="", eos_token="")
    return AnswerReading.of_template(template, tool_parser=tool_parser, reasoning_parser=reasoning)


@pytest.mark.parametrize(("source", "name"), SNIPPETS.items())
def test_the_tool_parser_of_a_template(source: str, name: str | None) -> None:
    reading = reading_of(source)
    assert (reading.tool_parser.name if reading.tool_parser else None) == name
    assert reading.takes_tools == ("tools %}" in source or "tools is" in source)


def test_a_name_goes_before_the_template() -> None:
    source = next(iter(SNIPPETS))
    assert reading_of(source, "none").tool_parser is None
    forced = reading_of(source, "glm45", "deepseek_r1")
    assert forced.tool_parser is not None and forced.tool_parser.name == "qwen3_coder"
    assert forced.reasoning is not None and forced.reasoning.begins_inside


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{% if not enable_thinking %}<think>\n\n</think>{% endif %}", "qwen3"),
        ("{{ content.split('</think>')[-1] }}<think>\n", "qwen3"),
        ("{{ '[THINK]' }}", "mistral"),
        ("<seed:think>", "seed_oss"),
        ("<|channel|>analysis<|message|>", "openai_gptoss"),
        ("Think well.", None),
    ],
)
def test_the_reasoning_parser_of_a_template(source: str, name: str | None) -> None:
    reasoning = reading_of(source).reasoning
    assert (reasoning.name if reasoning else None) == name
    assert reading_of(source, reasoning="none").reasoning is None


def test_what_an_answer_begins_with_is_told_from_the_prompts_end() -> None:
    qwen = reading_of("<think>")
    assert qwen.reasoning is not None
    assert qwen.reasoning.is_open("x <think>\n") and not qwen.reasoning.is_open("x")
    assert not qwen.reasoning.is_open("<think>\n\n</think>\n\n")
    forced = reading_of("", reasoning="deepseek_r1").reasoning
    assert forced is not None
    assert forced.is_open("x") and not forced.is_open("<think>\n\n</think>\n\n")


def test_without_a_template_there_is_no_reading_between_the_lines() -> None:
    reading = AnswerReading.of_template(None, tool_parser="auto", reasoning_parser="auto")
    assert not reading.takes_tools and reading.reasoning is None
