"""Two hundred schemas of the JSON Schema Test Suite on the engine: drafts change no answer, and every whole answer is valid."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import jsonschema_rs
import pytest
import schema_suite

from radixrt import Engine
from radixrt.errors import GrammarError

COUNT = 200
BATCH = 16


def schemas() -> list[tuple[Any, str]]:
    """Schemas that radixrt takes, each once, as text."""
    found: dict[str, Any] = {}
    for draft in schema_suite.DRAFTS:
        for case in schema_suite.cases(draft, "typed"):
            text = json.dumps(case.schema)
            if text not in found and len(found) < COUNT:
                try:
                    schema_suite.ours(case.schema, schema_suite.BYTES)
                except GrammarError:
                    continue
                found[text] = case.schema
    return [(schema, text) for text, schema in found.items()]


@pytest.mark.slow
def test_drafts_change_no_answer_of_two_hundred_schemas() -> None:
    wanted = schemas()
    assert len(wanted) == COUNT
    with ExitStack() as stack:
        shared = {"model_path": "toy", "max_total_tokens": 8000, "draft_token_cost": 0.02}
        drafting, plain = (stack.enter_context(Engine(**shared, disable_jump_forward=disabled)) for disabled in (False, True))
        for start in range(0, COUNT, BATCH):
            part = wanted[start : start + BATCH]
            sampling = [
                {"max_new_tokens": 120, "temperature": temperature, "seed": 7, "json_schema": text}
                for temperature in (0.0, 1.0) for _, text in part
            ]
            prompts = [f"{index}: " for index in range(len(sampling))]
            here, there = (engine.generate(prompts, sampling) for engine in (drafting, plain))
            assert [answer["text"] for answer in here] == [answer["text"] for answer in there]
            for answer, (schema, _) in zip(here, part * 2, strict=True):
                if answer["meta_info"]["finish_reason"]["type"] == "stop":
                    jsonschema_rs.validator_for(schema, offline=True).validate(json.loads(answer["text"]))
        assert drafting.stats.grammar.accepted_drafts > 500
        assert drafting.stats.steps < plain.stats.steps
