"""What compiling a JSON schema costs, in milliseconds of processor time: the least of some rounds for each schema.

    python benchmarks/compile_costs.py [--schemas FILE] [--rounds 8] [--model-path NAME]

The schemas are those of ``extraction.py`` and ``W6``, and of a file with a ``kind`` and ``spec`` a line.  Only what is compiled
beside the step loop counts, not what needs a process of its own.  The normaliser and the engine's constructor are told apart.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from extraction import CASES
from llguidance import LLMatcher
from peers.workloads import ORDER_SCHEMA

from radixrt.config import ModelConfig
from radixrt.engine.grammars import vocabulary_of
from radixrt.errors import GrammarError
from radixrt.grammar import llguidance_engine
from radixrt.grammar.schema import normalise
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.text.tokenizer import load_tokenizer
from radixrt.types import GrammarOptions, GrammarSpec, ModelInfo
from radixrt.weights.resolve import resolve_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--model-path", default=ModelConfig().model_path)
    given = parser.parse_args()
    vocabulary = load_vocabulary(given.model_path)
    llguidance_engine.prepare(vocabulary)
    specs = [spec for schema in schemas(given.schemas) if (spec := compilable(schema, vocabulary)) is not None]
    least = {part: [float("inf")] * len(specs) for part in ("compile", "normalise", "constructor")}
    for _ in range(given.rounds):
        for i, spec in enumerate(specs):
            began = time.thread_time()
            grammar = llguidance_engine.compile(spec, vocabulary)
            compiled = time.thread_time()
            normalise(msgspec.json.decode(spec.text))
            normalised = time.thread_time()
            source = LLMatcher.grammar_from_json_schema(grammar.text[len(llguidance_engine.JSON) :])
            LLMatcher(llguidance_engine._tokenizer(vocabulary), source, log_level=0, limits=llguidance_engine.LIMITS)
            ended = time.thread_time()
            for part, seconds in (("compile", compiled - began), ("normalise", normalised - compiled), ("constructor", ended - normalised)):
                least[part][i] = min(least[part][i], seconds)
    print(json.dumps({"schemas": len(specs), **{part: quantiles(seconds) for part, seconds in least.items()}}))


def load_vocabulary(model_path: str) -> Vocabulary:
    tokenizer = load_tokenizer(resolve_model(model_path).tokenizer)
    info = ModelInfo(
        model_path=model_path, architecture="", vocab_size=tokenizer.vocab_size, context_length=1, capacity_tokens=1,
        eos_token_ids=tuple(tokenizer.eos_token_ids),
    )  # fmt: skip
    return vocabulary_of(tokenizer, info)


def schemas(path: Path | None) -> list[Any]:
    cases = map(json.loads, path.read_text().splitlines()) if path is not None else ()
    return [*(case(0)[1] for case in CASES), ORDER_SCHEMA, *(case["spec"] for case in cases if case["kind"] == "json_schema")]


def compilable(schema: Any, vocabulary: Vocabulary) -> GrammarSpec | None:
    """The spec of a schema; None where it is refused, or not known to be cheap."""
    spec = GrammarSpec("json_schema", json.dumps(schema, separators=(",", ":")), GrammarOptions())
    if not llguidance_engine.is_cheap(spec):
        return None
    try:
        llguidance_engine.compile(spec, vocabulary)
    except GrammarError:
        return None
    return spec


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """The median and more, in milliseconds."""
    ordered = sorted(seconds)
    return {f"{part}%": round(1e3 * ordered[min(len(ordered) - 1, part * len(ordered) // 100)], 2) for part in (50, 90, 99)}


if __name__ == "__main__":
    main()
