"""Prompts as callers give them: read as token ids, and refused when they cannot fit."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from radixrt.errors import PromptTooLong, RequestError
from radixrt.types import ModelInfo

# A text is refused unread when it has more characters than this for every token that fits: no vocabulary has tokens
# that long on average, and tokenizing gigabytes only to count them would serve nobody.
MAX_CHARS_PER_TOKEN = 128


def max_tokens(info: ModelInfo) -> int:
    """Tokens that prompt and output of one request may have together."""
    return min(info.context_length, info.capacity_tokens)


def check_length(num_chars: int, info: ModelInfo, param: str) -> None:
    """Raise PromptTooLong when a text of so many characters cannot possibly fit."""
    limit = max_tokens(info)
    if num_chars > limit * MAX_CHARS_PER_TOKEN:
        raise PromptTooLong(
            f"This model's maximum context length is {limit} tokens; a text of {num_chars} characters does not fit.", param=param
        )


def check_fits(num_tokens: int, info: ModelInfo, param: str) -> None:
    """Raise PromptTooLong for a prompt of so many tokens that no answer fits."""
    limit = max_tokens(info)
    if num_tokens >= limit:
        whose = "This model's" if limit == info.context_length else "With this KV pool the"
        raise PromptTooLong(
            f"{whose} maximum context length is {limit} tokens, output included, but the prompt has {num_tokens}.", param=param
        )


def check_prompt(tokens: Sequence[int], info: ModelInfo, param: str) -> None:
    """Raise RequestError unless the tokens are a prompt the model can answer with at least one token."""
    if not tokens:
        raise RequestError("The prompt is empty.", param=param, code="empty_prompt")
    check_fits(len(tokens), info, param)
    if min(tokens) < 0 or max(tokens) >= info.vocab_size:
        raise RequestError(f"Token ids must be in [0, {info.vocab_size - 1}].", param=param, code="invalid_value")


def token_ids(prompt: Sequence[Any], param: str) -> list[int]:
    """Return a prompt given as ids as a plain list; RequestError for anything that is not a whole number."""
    if not isinstance(prompt, Iterable):
        raise RequestError("A prompt is a text or a list of token ids.", param=param, code="invalid_type")
    ids = list(prompt)
    if all(type(token) is int for token in ids):
        return ids
    try:
        if any(isinstance(token, bool) for token in ids):
            raise TypeError
        return [operator.index(token) for token in ids]
    except TypeError:
        raise RequestError("A prompt is a text or a list of token ids.", param=param, code="invalid_type") from None


def text_length(value: Any) -> int:
    """Count the characters of all strings inside a message, or a part of one."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(text_length, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(text_length, value))
    return 0
