"""Sampling options as programs write them, with the defaults of a run below them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

DEFAULT_MAX_TOKENS = 128
# What the engine calls otherwise.
_NATIVE = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_NOT_SAMPLING = ("stop_regex", "logprobs", "top_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Options of one generation; None leaves a choice to the run, and then to the engine.

    ``stop_regex`` ends the text before its first match.  ``json_schema`` is a schema as text.  ``logprobs`` reports the
    logprob of each token, ``top_logprobs`` so many alternatives besides, in the meta information.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None

    def over(self, defaults: Sampling) -> Sampling:
        """Return these options, with those of ``defaults`` where nothing is said."""
        return dataclasses.replace(defaults, **self.given())

    def given(self) -> dict[str, Any]:
        """The options that are set."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def native(self) -> dict[str, Any]:
        """Return the sampling parameters of radixrt's native form."""
        params = {_NATIVE.get(name, name): value for name, value in self.given().items() if name not in _NOT_SAMPLING}
        return {"max_new_tokens": DEFAULT_MAX_TOKENS} | params

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def constrained(self) -> bool:
        """Whether a grammar limits what may be said."""
        return self.regex is not None or self.json_schema is not None or self.ebnf is not None


NAMES = tuple(field.name for field in dataclasses.fields(Sampling))
# Names under which SGLang's ``run`` takes the same.
ALIASES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "return_logprob": "logprobs", "top_logprobs_num": "top_logprobs"}


def make_sampling(**given: Any) -> Sampling:
    """Build options from keywords, SGLang's names included.  Raises TypeError for a name there is not."""
    named: dict[str, Any] = {ALIASES.get(name, name): value for name, value in given.items() if value is not None}
    for name, value in named.items():
        if isinstance(value, list):
            named[name] = tuple(value)
    return Sampling(**named)


def schema_text(schema: Any) -> str | None:
    """Return a schema, given as text, as a dict or as a pydantic model, as text."""
    if schema is None or isinstance(schema, str):
        return schema
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
