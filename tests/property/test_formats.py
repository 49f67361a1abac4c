"""Texts of the formats: what a grammar lets through, both validators take; the calendar is Python's."""

from __future__ import annotations

import json
import random
import re
from datetime import date
from functools import cache
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from grammar_walk import BYTES, accepts, allowed

from radixrt.grammar.llguidance_engine import compile
from radixrt.grammar.schema.formats import FORMATS
from radixrt.types import GrammarSpec

NUM_TEXTS = 40
MAX_LENGTH = 280
QUOTE = ord('"')
LIKED = b"-.:0a"


@cache
def grammar(schema: str) -> Any:
    return compile(GrammarSpec("json_schema", schema), BYTES)


def is_valid(schema: dict[str, Any], value: str) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    own = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)
    return own and bool(jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value))


def text_of(schema: str, rng: random.Random) -> str:
    """A random text, byte by byte; most of them prefer one character, and some are long."""
    state, text = grammar(schema).new_state(), bytearray()
    ending, liked = rng.choice((0.0, 0.03, 0.3)), rng.choice((*LIKED, -1))
    while not state.is_accepting():
        choices = [token for token in allowed(state) if token < 256]
        if QUOTE in choices and text and (rng.random() < ending or len(text) > MAX_LENGTH):
            choices = [QUOTE]
        elif liked in choices and rng.random() < 0.5:
            choices = [liked]
        elif len(choices) > 1:
            choices = [token for token in choices if token != QUOTE]
        byte = rng.choice(sorted(choices))
        assert state.accept(byte)
        text.append(byte)
    return str(json.loads(text))


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_grammar_lets_through_is_valid(name: str) -> None:
    schema = {"type": "string", "format": name}
    rng = random.Random(name)
    texts = {text_of(json.dumps(schema), rng) for _ in range(NUM_TEXTS)}
    assert [text for text in texts if not is_valid(schema, text)] == []


def test_dates_are_those_of_the_calendar() -> None:
    pattern = re.compile(FORMATS["date"]["pattern"], re.ASCII)
    days = [f"{year:04}-02-{day}" for year in range(10_000) for day in ("28", "29", "30")]
    days += [f"{year}-{month:02}-{day:02}" for year in (1, 1900, 2000, 2023, 2024) for month in range(14) for day in range(33)]
    assert [day for day in days if bool(pattern.match(day)) is not is_date(day)] == []


def is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", "2024-02-29"), ("date", "9999-12-31"), ("date-time", "2000-02-29t12:00:00.5+05:45"), ("date-time", "2016-12-31T23:59:60Z"),
        ("time", "23:59:60.25-00:00"), ("time", "00:00:00z"), ("hostname", "a--b.C-3.x9"), ("hostname", "1." * 60 + "org"),
        ("email", "first.last+tag@mail.example.co.uk"), ("email", "a@[127.0.0.1]"), ("duration", "P3Y6M4DT12H30M5S"), ("ipv6", "::1"),
        ("uri", "https://user@example.com:8080/a/b?c=d#e"), ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380"), ("ipv4", "192.168.0.1"),
    ],
)  # fmt: skip
def test_usual_texts_are_let_through(name: str, text: str) -> None:
    schema = {"type": "string", "format": name}
    assert is_valid(schema, text)
    assert accepts(grammar(json.dumps(schema)), json.dumps(text))


def test_formats_hold_beside_other_keywords() -> None:
    host = grammar('{"type": "string", "format": "hostname", "maxLength": 5}')
    assert [accepts(host, json.dumps(text)) for text in ("a.b.c", "a.b.cd")] == [True, False]
    both = grammar('{"type": "string", "format": "date", "pattern": "^2023-02", "minLength": 3}')
    assert [accepts(both, json.dumps(text)) for text in ("2023-02-28", "2023-02-29", "2024-02-29")] == [True, False, False]
