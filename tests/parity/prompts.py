"""Chat prompts for the greedy fixture of the default model.

Short and varied on purpose: questions, code, lists, arithmetic, other scripts, emoji, odd
whitespace, with and without a system message.  The fixture stores their token ids, so a change
here means making the fixture again.
"""

from __future__ import annotations

Messages = list[dict[str, str]]


def _chat(user: str, system: str | None = None) -> Messages:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": user}]


PROMPTS: dict[str, Messages] = {
    "hi": _chat("Hi"),
    "capital": _chat("What is the capital of Portugal?"),
    "sky": _chat("Why does the sky turn red in the evening? Answer in two sentences."),
    "bread": _chat("List five things I need to bake a simple loaf of bread."),
    "sum": _chat("What is 17 + 25?"),
    "years": _chat("A tree was planted in 1987. How old was it in 2024?"),
    "python_function": _chat("Write a Python function that returns the largest of three numbers."),
    "python_fix": _chat(
        "What is wrong with this code?\n\n```python\ndef mean(values):\n"
        "    total = 0\n    for v in values:\n\ttotal += v\n    return total / len(value)\n```"
    ),
    "sql": _chat("Write an SQL query that counts the orders of each customer in 2023."),
    "json": _chat(
        "Turn this into JSON: name Ada, age 36, city London.",
        system="You answer with JSON and nothing else.",
    ),
    "bash": _chat("How do I find all files larger than 100 MB under /var/log?"),
    "regex": _chat("Explain the regular expression ^[A-Z]{2}\\d{4}$ briefly."),
    "haiku": _chat("Write a haiku about a chairlift in fog."),
    "story": _chat("Begin a story with the sentence: The last lamp in the valley went out."),
    "pirate": _chat(
        "How do I boil an egg?", system="You are a cheerful pirate. Keep your answers short."
    ),
    "terse": _chat(
        "Is water wet?", system="Answer with exactly one word, in lower case, without a full stop."
    ),
    "teacher": _chat(
        "What is a fraction?", system="You are a patient teacher of eight-year-old children."
    ),
    "translate_french": _chat("Translate into French: The train leaves at half past seven."),
    "french": _chat("Quelle est la différence entre un fleuve et une rivière ?"),
    "german": _chat("Erkläre mir in einem Satz, was ein Wörterbuch ist."),
    "spanish": _chat("¿Cuántos días tiene un año bisiesto?"),
    "chinese": _chat("请用一句话介绍长城。"),
    "japanese": _chat("おすすめの朝ごはんを三つ教えてください。"),
    "russian": _chat("Назови три самых больших озера мира."),
    "arabic": _chat("ما هي عاصمة مصر؟"),
    "emoji": _chat("What do these mean? 🚡❄️👩‍🚀 🏳️‍🌈"),
    "emoji_reply": _chat(
        "I passed my exam today!!! 🎉🎉", system="Reply warmly and end each sentence with an emoji."
    ),
    "whitespace": _chat("  Name   three\tcolours.\n\n\nOne per line.  \n"),
    "summary": _chat(
        "Summarise the following text in one sentence.\n\n"
        "The lift was built in the spring of 1956 by a dozen farmers who were tired of carrying "
        "their hay down on sledges. It had one motor, taken from a lorry, and forty wooden seats. "
        "For eleven summers it carried hay by day and, against all rules, dancers by night. When "
        "the new road came, the motor was sold, but the pylons were left standing, and today a "
        "pair of storks nests on the highest of them."
    ),
    "compare": _chat("Compare cats and dogs as pets in a table with three rows."),
    "numbers": _chat("Continue the sequence: 2, 4, 8, 16, 32, ... 3.14159 is not part of it."),
    "unicode": _chat("Which letters here are Greek? naïve café, Ωmega, ﬁne, ½, x² + y² = r²"),
}
