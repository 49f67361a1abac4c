"""What can be appended to a state besides text: generations, choices, roles, and concatenations of them.

Expressions are values: they say what is to be done and do nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from radixlang.errors import Site, refuse
from radixlang.options import Sampling, make_sampling, schema_text
from radixlang.select import METHODS, ChoicesMethod, token_length_normalized

Appendable = Any  # str | int | float | Expr


class Expr:
    """Base of all expressions; ``+`` concatenates them with each other and with text."""

    def __add__(self, other: Appendable) -> Expr:
        return Concat((*_parts(self), *_parts(other)))

    def __radd__(self, other: Appendable) -> Expr:
        return Concat((*_parts(other), *_parts(self)))


def _parts(value: Appendable) -> tuple[Appendable, ...]:
    return value.parts if isinstance(value, Concat) else (value,)


@dataclass(frozen=True, slots=True)
class Concat(Expr):
    """Several things, one after the other."""

    parts: tuple[Appendable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gen(Expr):
    """Text for the model to write.  ``convert`` makes of it the value of the variable ``name``."""

    name: str | None
    sampling: Sampling
    convert: Callable[[str], Any] = str
    reasoning: tuple[str, str] | None = None
    site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Expr):
    """One of several texts, the one the model finds likeliest."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    site: Site


@dataclass(frozen=True, slots=True)
class Role(Expr):
    """``expr`` as a whole message of a role."""

    role: str
    expr: Appendable


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    """The start of a message."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    """The end of a message."""

    role: str


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A program to be run on the state it is appended to."""

    body: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# SGLang's: one space or newline may follow, and ends the text without being part of it.
_TYPES: dict[type, tuple[str, tuple[str, ...] | None, Callable[[str], Any]]] = {
    int: (r"[-+]?[0-9]+[ \n]?", (" ", "\n"), int),
    float: (r"[-+]?[0-9]+(\.[0-9]+)?[ \n]?", (" ", "\n"), float),
    bool: (r"(True|False)", None, lambda text: text.strip() == "True"),
    str: (r'"([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt])*"', None, lambda text: json.loads(text)),
}


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    dtype: type | str | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    ebnf: str | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | None = None,
    **sampling: Any,
) -> Expr:
    """Let the model write, and keep it as variable ``name``.

    At most one of ``choices`` (as ``select``), ``dtype`` (int, float, bool or str), ``regex``, ``json_schema`` (text, dict
    or pydantic model, which the value is then an instance of) and ``ebnf`` limits what may be written.  ``sampling``:
    the fields of ``radixlang.options.Sampling``.  With ``n`` > 1 the variable is a list and the state goes on with the first.
    """
    site = Site.here()
    limits = {"choices": choices, "dtype": dtype, "regex": regex, "json_schema": json_schema, "ebnf": ebnf}
    given = [key for key, value in limits.items() if value is not None]
    if len(given) > 1:
        raise refuse(f"{' and '.join(given)} exclude each other.")
    if choices is not None:
        return select(name, choices, choices_method=choices_method)
    for pattern, what in ((regex, "regex"), (stop_regex, "stop_regex")):
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise refuse(f"{what} {pattern!r} is no regular expression: {error}.") from None
    convert: Callable[[str], Any] = getattr(json_schema, "model_validate_json", str)
    if dtype is not None:
        kinds = {kind.__name__: kind for kind in _TYPES}
        kind = kinds.get(dtype if isinstance(dtype, str) else dtype.__name__)
        if kind is None:
            raise refuse(f"dtype must be one of {', '.join(kinds)}, got {dtype!r}.")
        regex, stops, convert = _TYPES[kind]
        stop = stop if stop is not None else stops
    try:
        options = make_sampling(
            max_tokens=max_tokens, regex=regex, json_schema=schema_text(json_schema), ebnf=ebnf, stop_regex=stop_regex,
            stop=stop if stop is None or isinstance(stop, str) else list(stop),
            stop_token_ids=None if stop_token_ids is None else list(stop_token_ids), **sampling,
        )
    except TypeError as error:
        raise refuse(f"gen: {error}") from None
    return Gen(name=name, sampling=options, convert=convert, site=site)


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Expr:
    """Let the model write a whole number."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_float(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Expr:
    """Let the model write a decimal number."""
    return gen(name, max_tokens, dtype=float, **options)


def gen_bool(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Expr:
    """Let the model write True or False."""
    return gen(name, max_tokens, dtype=bool, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Expr:
    """Let the model write a string in double quotes; the value is without them."""
    return gen(name, max_tokens, dtype=str, **options)


def select(
    name: str | None = None, choices: Sequence[str] | None = None, *, temperature: float = 0.0,
    choices_method: ChoicesMethod | str | None = None,
) -> Expr:
    """Append the likeliest of ``choices`` by their logprobs, and keep it as variable ``name``.

    ``choices_method``: one of ``radixlang.select.METHODS``, or its name.  ``temperature`` must be 0.
    """
    if isinstance(choices, str) or not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise refuse("select takes a list of texts, none of them empty.")
    if temperature > 1e-5:
        raise refuse("select takes no temperature: it picks the likeliest.")
    if isinstance(choices_method, str):
        if choices_method not in METHODS:
            raise refuse(f"choices_method must be one of {', '.join(METHODS)}, got {choices_method!r}.")
        choices_method = METHODS[choices_method]
    return Select(name=name, choices=tuple(choices), method=choices_method or token_length_normalized, site=Site.here())


def system(expr: Appendable) -> Expr:
    """A message of the system."""
    return Role("system", expr)


def user(expr: Appendable) -> Expr:
    """A message of the user."""
    return Role("user", expr)


def assistant(expr: Appendable) -> Expr:
    """A message of the assistant."""
    return Role("assistant", expr)


def system_begin() -> Expr:
    return RoleBegin("system")


def system_end() -> Expr:
    return RoleEnd("system")


def user_begin() -> Expr:
    return RoleBegin("user")


def user_end() -> Expr:
    return RoleEnd("user")


def assistant_begin() -> Expr:
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    return RoleEnd("assistant")


REASONING_MARKS = {"deepseek-r1": ("<think>", "</think>"), "qwen3": ("<think>", "</think>")}


def separate_reasoning(expr: Appendable, model_type: str = "qwen3") -> Expr:
    """Split what the generations of ``expr`` say into the variable and ``<name>_reasoning_content``; the state keeps both."""
    marks = REASONING_MARKS.get(model_type.lower())
    if marks is None:
        raise refuse(f"model_type must be one of {', '.join(REASONING_MARKS)}, got {model_type!r}.")
    parts = tuple(replace(part, reasoning=marks) if isinstance(part, Gen) else part for part in _parts(expr))
    return Concat(parts)


def image(path: Any) -> Expr:
    """Refused: the models that radixrt serves read text only."""
    raise refuse("image: the models that radixrt serves read text only.")


def video(path: Any, num_frames: int = 0) -> Expr:
    """Refused: the models that radixrt serves read text only."""
    raise refuse("video: the models that radixrt serves read text only.")
