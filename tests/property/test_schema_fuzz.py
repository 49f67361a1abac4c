"""No text of a grammar is one that its schema forbids, whatever the schema."""

from __future__ import annotations

import json
import random
from collections import Counter

import jsonschema_rs
from grammar_walk import BYTES, accepts
from schema_fuzz import INSTANCES, document, text_of

from radixrt.errors import GrammarError
from radixrt.grammar.llguidance_engine import compile
from radixrt.types import GrammarSpec

NUM_SCHEMAS = 150
HARD = (22477, 22935)  # whether two choices are disjoint depends on whether they are


def test_texts_of_a_grammar_meet_the_schema() -> None:
    outcomes: Counter[str] = Counter()
    for seed in (*range(NUM_SCHEMAS), *HARD):
        schema = document(seed)
        try:
            grammar = compile(GrammarSpec("json_schema", json.dumps(schema)), BYTES)
        except GrammarError:
            outcomes["refused"] += 1
            continue
        validator = jsonschema_rs.validator_for(schema, offline=True)
        for value in INSTANCES:
            valid, found = validator.is_valid(value), accepts(grammar, json.dumps(value))
            assert valid or not found, (seed, json.dumps(schema), value)
            outcomes["valid"] += valid
            outcomes["found"] += found
        rng = random.Random(seed)
        for _ in range(4):
            text = text_of(grammar, rng, rng.randrange(40))
            outcomes["texts" if text is not None else "not closed"] += 1
            assert text is None or validator.is_valid(json.loads(text)), (seed, json.dumps(schema), text)
    assert outcomes["refused"] < 0.7 * NUM_SCHEMAS
    assert outcomes["found"] > 0.8 * outcomes["valid"]
    assert outcomes["not closed"] < 0.05 * outcomes["texts"]
