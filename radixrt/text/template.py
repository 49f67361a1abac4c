"""The sandbox chat templates render in: Hugging Face's dialect of Jinja, with loops that cannot run away."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_ITERATIONS = 1 << 20

# Unicode noncharacters, which no text needs: they mark places in messages and pass through a template unchanged.
MARKERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_ESCAPED = re.compile(f"[^\x00-\x7f{MARKERS[0]}-{MARKERS[-1]}]")

# Names that no template can spell, hence neither read nor replace.
_LIMIT = "loop limit"
_BUDGET = "loop budget"


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; for serving it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates: whitespace, filters and globals as ``transformers`` has them, every loop counted."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
        self.filters["tojson"] = _tojson
        self.filters[_LIMIT] = _limited
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _LIMIT, [], [], None, None, lineno=loop.lineno)
        return template


def compile_template(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Compile a template; returns the names that it expects to be given too.  Raises jinja2.TemplateError."""
    environment = TemplateEnvironment()
    return environment.from_string(source), frozenset(meta.find_undeclared_variables(environment.parse(source)))


def generate(template: jinja2.Template, variables: Mapping[str, Any]) -> Iterator[str]:
    """Render piece by piece; raises TemplateRuntimeError after too many loop iterations, all loops together."""
    return template.generate({**variables, _BUDGET: _Budget(MAX_ITERATIONS)})


class _Budget:
    def __init__(self, left: int) -> None:
        self.left = left


@jinja2.pass_context
def _limited(context: Context, iterable: Iterable[Any]) -> Iterator[Any]:
    budget = context[_BUDGET]
    for item in iterable:
        budget.left -= 1
        if budget.left < 0:
            raise jinja2.TemplateRuntimeError("too many loop iterations")
        yield item


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
