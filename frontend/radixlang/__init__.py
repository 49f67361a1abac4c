"""radixlang: programs whose text is partly written by a model.

    from radixlang import function, gen

    @function
    def capital(s, country):
        s += f"The capital of {country} is" + gen("city", 8, stop=".")

    state = capital.run("France")
    state["city"]

A program is ordinary Python that appends to a state.  What states share is computed once: see docs/radixlang.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from radixlang.backends.scripted import ScriptedBackend
from radixlang.errors import ProgramError
from radixlang.expr import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_bool,
    gen_float,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from radixlang.forks import Forks
from radixlang.program import Function, function, set_default_backend
from radixlang.run import Usage
from radixlang.select import greedy_token_selection, token_length_normalized, unconditional_likelihood_normalized
from radixlang.state import State

if TYPE_CHECKING:
    from radixlang.backends.anthropic import AnthropicBackend
    from radixlang.backends.engine import EngineBackend
    from radixlang.backends.http import HttpBackend
    from radixlang.backends.openai import OpenAIBackend

__all__ = [
    "AnthropicBackend",
    "EngineBackend",
    "Forks",
    "Function",
    "HttpBackend",
    "OpenAIBackend",
    "ProgramError",
    "ScriptedBackend",
    "State",
    "Usage",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "function",
    "gen",
    "gen_bool",
    "gen_float",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

# Imported when first used: one needs torch, the others an HTTP client.
_HOMES = {
    "AnthropicBackend": "radixlang.backends.anthropic",
    "EngineBackend": "radixlang.backends.engine",
    "HttpBackend": "radixlang.backends.http",
    "OpenAIBackend": "radixlang.backends.openai",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'radixlang' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
