"""Steps and time of constrained extraction, with and without the text that grammars force: json-mode answers, invoices, calls.

``python benchmarks/extraction.py [--model NAME] [--num N] [--at-once N]`` runs the same requests in turn without drafts, with as many
as pay by default, and with all there are, and prints, for each whitespace mode and temperature, forward steps a token, tokens a
second of the clock and of the processor, drafts offered and accepted, how many texts are those without drafts, and how many
break their schema.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from typing import Any

import jsonschema_rs

from radixrt import Engine
from radixrt.types import EngineStats

NAMES = ("Ada Lovelace", "Li Wei", "Zoë Brandt", "Omar Haddad", "Ines Costa", "Kofi Mensah", "Yuki Tanaka", "Ana Petrov")
CITIES = ("Oslo", "Lyon", "Turin", "Accra", "Kyoto", "Quito", "Malmö", "Porto")


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TEXT = {"type": "string", "maxLength": 24}
AMOUNT = {"type": "integer", "minimum": 0, "maximum": 99999}


def person(i: int) -> tuple[str, dict[str, Any]]:
    text = f"{NAMES[i % 8]}, aged {20 + i % 50}, moved to {CITIES[i % 8]} and works as a nurse. Extract the person."
    return text, obj(
        name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 150}, city=TEXT, occupation=TEXT, **{f"tag_{i}": {"type": "boolean"}}
    )


def invoice(i: int) -> tuple[str, dict[str, Any]]:
    text = f"Invoice INV-{1000 + i} of {CITIES[i % 8]} Paper Ltd: 3 boxes at {5 + i % 9} EUR, due in June. Extract the invoice."
    line = obj(description=TEXT, quantity=AMOUNT, unit_price=AMOUNT)
    lines = {"type": "array", "items": line, "minItems": 1, "maxItems": 2}
    return text, obj(
        invoice_number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
        currency={"enum": ["EUR", "USD"]},
        vendor=obj(name=TEXT, city=TEXT),
        lines=lines,
        **{f"total_{i}": AMOUNT},
    )


def call(i: int) -> tuple[str, dict[str, Any]]:
    text = f"What will the weather be in {CITIES[i % 8]} in {1 + i % 6} days? Call the tool."
    arguments = obj(
        location=TEXT, days_ahead={"type": "integer", "minimum": 0, "maximum": 14}, temperature_unit={"enum": ["celsius", "fahrenheit"]}
    )
    return text, obj(tool_name={"const": f"get_weather_forecast_{i}"}, arguments=arguments)


CASES = (person, invoice, call)


DRAFTS: dict[str, dict[str, Any]] = {"off": {"disable_jump_forward": True}, "default": {}, "unlimited": {"draft_token_cost": 0.0}}


def run(
    engine: Engine, temperature: float, whitespace: str, num: int, max_tokens: int, at_once: int
) -> tuple[list[str], dict[str, float], int]:
    """Run the requests; returns texts, figures, and how many answers break their schema."""
    before, started, spent = engine.stats, time.perf_counter(), time.process_time()
    texts, broken = [], 0
    for start in range(0, num, at_once):
        batch = [CASES[i % len(CASES)](i) for i in range(start, min(num, start + at_once))]
        params = [
            {
                "temperature": temperature,
                "sampling_seed": start + j,
                "max_new_tokens": max_tokens,
                "json_schema": json.dumps(schema),
                "grammar_options": {"whitespace": whitespace},
            }
            for j, (_, schema) in enumerate(batch)
        ]
        answers = engine.generate([f"{text}\nJSON:" for text, _ in batch], params)
        for (_, schema), answer in zip(batch, answers, strict=True):
            texts.append(answer["text"])
            try:
                broken += not jsonschema_rs.is_valid(schema, json.loads(answer["text"]))
            except ValueError:
                broken += 1
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    return texts, figures(before, engine.stats, seconds, spent), broken


def figures(before: EngineStats, after: EngineStats, seconds: float, cpu_seconds: float) -> dict[str, float]:
    """What happened between two snapshots.  Rows a token: sampled row-steps, which are steps where one request runs alone."""
    tokens = after.generated_tokens - before.generated_tokens
    accepted = after.grammar.accepted_drafts - before.grammar.accepted_drafts
    offered = after.grammar.drafted_tokens - before.grammar.drafted_tokens
    closed = after.grammar.closed - before.grammar.closed
    mask_seconds = after.grammar.mask_seconds - before.grammar.mask_seconds
    return {
        "tokens": tokens,
        "steps_a_token": (tokens - accepted) / tokens,
        "tokens_a_second": tokens / seconds,
        "tokens_a_cpu_second": tokens / cpu_seconds,
        "drafted": offered,
        "accepted": accepted / offered if offered else 0.0,
        "closed": closed,
        "mask_us": 1e6 * mask_seconds / max(1, after.grammar.masked_rows - before.grammar.masked_rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--num", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--whitespace", default="flexible,compact,fixed")
    parser.add_argument("--temperatures", default="0,1")
    given = parser.parse_args()
    with ExitStack() as stack:
        engines = {name: stack.enter_context(Engine(model_path=given.model, **how)) for name, how in DRAFTS.items()}
        for engine in engines.values():  # weights are paged in, and the vocabulary is made
            run(engine, 0.0, "fixed", 1, given.max_tokens, 1)
        for whitespace in given.whitespace.split(","):
            for temperature in map(float, given.temperatures.split(",")):
                plain: list[str] = []
                for name, engine in engines.items():
                    texts, found, broken = run(engine, temperature, whitespace, given.num, given.max_tokens, given.at_once)
                    plain = plain or texts
                    equal = sum(one == other for one, other in zip(texts, plain, strict=True))
                    print(json.dumps({
                        "whitespace": whitespace, "temperature": temperature, "drafts": name, "equal": f"{equal}/{len(texts)}",
                        "broken": broken, **{name: round(value, 3) for name, value in found.items()},
                    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
