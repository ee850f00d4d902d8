"""Fields that are known but not served: refused by name, or taken without effect and named.

A field is refused unless its value asks for nothing, such as `best_of: 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chairlift.server.errors import bad_request, unsupported
from chairlift.server.protocol.strict_model import StrictModel

IsNeutral = Callable[[Any], bool]


def is_one_of(*values: Any) -> IsNeutral:
    """Exactly one of these, types included: 1 is not True."""
    return lambda value: any(type(value) is type(one) and value == one for one in values)


_NOTHING = is_one_of()
_OFF = is_one_of(False)

REFUSED_EVERYWHERE: dict[str, IsNeutral] = {
    "use_beam_search": _OFF,
    "length_penalty": is_one_of(1, 1.0),
    "prompt_embeds": _NOTHING,
    "prompt_logprobs": _NOTHING,
    "truncate_prompt_tokens": _NOTHING,
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "guided_decoding_backend": is_one_of("auto", "guidance"),
    "structural_tag": _NOTHING,
    "logits_processors": is_one_of([]),
    "kv_transfer_params": _NOTHING,
    "vllm_xargs": is_one_of({}),
    "mm_processor_kwargs": is_one_of({}),
}
REFUSED_IN_CHAT: dict[str, IsNeutral] = REFUSED_EVERYWHERE | {
    "functions": is_one_of([]),
    "function_call": is_one_of("none", "auto"),
    "audio": _NOTHING,
    "prediction": _NOTHING,
    "web_search_options": _NOTHING,
    "modalities": is_one_of(["text"]),
    "chat_template": _NOTHING,
    "continue_final_message": _OFF,
    "documents": is_one_of([]),
    "echo": _OFF,
    "best_of": is_one_of(1),
    "suffix": is_one_of(""),
}
REFUSED_IN_COMPLETIONS: dict[str, IsNeutral] = REFUSED_EVERYWHERE | {"suffix": is_one_of("")}
REFUSED_IN_EMBEDDINGS: dict[str, IsNeutral] = {
    "messages": _NOTHING,
    "prompt_embeds": _NOTHING,
    "use_activation": is_one_of(True),
    "embed_dtype": is_one_of("float32"),
    "endianness": is_one_of("native", "little"),
    "padding": is_one_of("do_not_pad"),
    "mm_processor_kwargs": is_one_of({}),
    "stream": _OFF,
}

WITHOUT_EFFECT = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "verbosity",
)


def ignored_fields(
    request: StrictModel,
    refused: Mapping[str, IsNeutral],
    others: Iterable[str] = (),
    *,
    is_strict: bool,
) -> list[str]:
    """Names of given fields that change nothing, `others` among them.

    Raises `ApiError` for one that cannot be honoured, and, if `is_strict`, for any ignored one.
    """
    ignored = []
    for name in request.unknown_fields():
        is_neutral = refused.get(name)
        if is_neutral is None:
            ignored.append(name)
        elif not is_neutral((request.model_extra or {})[name]):
            raise unsupported(name, f"{name} is not supported with this value by this server")
    ignored += [name for name in WITHOUT_EFFECT if name in request.model_fields_set]
    names = list(dict.fromkeys([*ignored, *others]))
    if is_strict and names:
        shown = names[0][:100]
        raise bad_request(
            f"{shown} is unknown or without effect, and this server is strict about that",
            param=shown,
            code="unknown_parameter",
        )
    return names
