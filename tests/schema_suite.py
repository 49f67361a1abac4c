"""The JSON Schema Test Suite walked through grammars: ``python -m schema_suite`` reports, ``--write`` renews what is expected.

An instance is accepted when its text, its keys as given or in the order of the schema, passes token by token under the mask and
may end.  ``typed`` schemas have the type added that their keywords imply, as people mean them; what is valid is asked of
jsonschema-rs, so that it is right for both forms.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
from grammar_walk import BYTES, accepts

from radixrt.errors import GrammarError
from radixrt.grammar import llguidance_engine, xgrammar_engine
from radixrt.grammar.vocabulary import Vocabulary
from radixrt.text.tokenizer import load_tokenizer
from radixrt.types import GrammarOptions, GrammarSpec

FOLDER = Path(__file__).parent / "data" / "json-schema-test-suite"
EXPECTED = FOLDER / "expected.json"
DRAFTS = {"draft2020-12": "https://json-schema.org/draft/2020-12/schema", "draft7": "http://json-schema.org/draft-07/schema#"}
IMPLIED = {
    "object": "properties patternProperties additionalProperties required minProperties maxProperties propertyNames dependentRequired"
    " dependentSchemas dependencies unevaluatedProperties",
    "array": "items prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains unevaluatedItems",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
}
ONE = {"additionalProperties", "items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
       "unevaluatedProperties"}  # fmt: skip
MANY = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}


class Case(NamedTuple):
    """One schema of the suite, in one form, with instances and whether each is valid."""

    name: str
    schema: Any
    instances: list[tuple[Any, bool]]


class Outcome(NamedTuple):
    """What became of a schema: refused and why, or how many valid instances were rejected and invalid ones accepted."""

    refusal: str | None
    rejected: int = 0
    accepted: int = 0

    @property
    def word(self) -> str:
        if self.refusal is not None:
            return f"refused: {self.refusal}"
        if self.accepted:
            return f"WRONG: accepts {self.accepted} invalid"
        return f"rejects {self.rejected} valid" if self.rejected else "right"


def typed(schema: Any) -> Any:
    """Return a schema with the types that its keywords imply."""
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    for keyword, below in schema.items():
        if keyword in NAMED and isinstance(below, dict):
            out[keyword] = {name: typed(item) for name, item in below.items()}
        elif keyword in MANY and isinstance(below, list):
            out[keyword] = [typed(item) for item in below]
        elif keyword in ONE:
            out[keyword] = typed(below)
    if not {"type", "$ref", "const", "enum"} & set(schema):
        kinds = [kind for kind, keywords in IMPLIED.items() if set(keywords.split()) & set(schema)]
        if kinds:
            out["type"] = kinds[0] if len(kinds) == 1 else kinds
    return out


def cases(draft: str, form: str) -> Iterator[Case]:
    """Yield the schemas of a draft."""
    for path in sorted((FOLDER / draft).glob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            schema = typed(schema) if form == "typed" else schema
            try:
                validator = jsonschema_rs.validator_for(schema, offline=True)
            except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
                continue  # it needs documents from elsewhere
            instances = [(test["data"], validator.is_valid(test["data"])) for test in group["tests"]]
            yield Case(f"{draft} {form} {path.stem}: {group['description']}", schema, instances)


def reordered(value: Any, schema: Any) -> Any:
    """Return an instance with its keys in the order in which a plain schema names them."""
    if isinstance(value, list):
        return [reordered(item, schema) for item in value]
    if not isinstance(value, dict):
        return value
    order: dict[str, int] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for name in node.get("properties", {}) if isinstance(node.get("properties"), dict) else ():
                order.setdefault(name, len(order))
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return {name: reordered(value[name], schema) for name in sorted(value, key=lambda name: order.get(name, 1 << 30))}


Compile = Callable[[Any, Vocabulary], Any]


def outcome(case: Case, compile_schema: Compile, vocabulary: Vocabulary = BYTES) -> Outcome:
    """Walk the instances of a case."""
    try:
        grammar = compile_schema(case.schema, vocabulary)
    except GrammarError as error:
        return Outcome(str(error))
    rejected = accepted = 0
    for value, valid in case.instances:
        texts = dict.fromkeys(json.dumps(form, ensure_ascii=False) for form in (value, reordered(value, case.schema)))
        found = any(accepts(grammar, text, vocabulary) for text in texts)
        rejected += valid and not found
        accepted += found and not valid
    return Outcome(None, rejected, accepted)


def ours(schema: Any, vocabulary: Vocabulary) -> Any:
    """Compile as the service does: llguidance, and what it refuses, xgrammar."""
    spec = GrammarSpec("json_schema", json.dumps(schema), GrammarOptions())
    try:
        return llguidance_engine.compile(spec, vocabulary)
    except GrammarError as error:
        try:
            return xgrammar_engine.compile(spec, vocabulary)
        except GrammarError:
            raise error from None


def bare_llguidance(schema: Any, vocabulary: Vocabulary) -> Any:
    return llguidance_engine.compile_schema(schema, GrammarOptions(), vocabulary)


def bare_xgrammar(schema: Any, vocabulary: Vocabulary) -> Any:
    return xgrammar_engine.unchecked_schema(schema, GrammarOptions(), vocabulary)


ENGINES: dict[str, Compile] = {"ours": ours, "llguidance": bare_llguidance, "xgrammar": bare_xgrammar}


def tokens_of(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer."""
    tokenizer = load_tokenizer(path)
    texts = [None if tokenizer.is_special(token) else tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    return Vocabulary(texts, tokenizer.eos_token_ids, lambda text: tokenizer.encode(text, add_special_tokens=False, allow_special=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--tokenizer", type=Path, help="walk by the tokens of this GGUF file or folder instead of bytes")
    parser.add_argument("--show", help="print the cases whose outcome starts so")
    args = parser.parse_args()
    vocabulary = BYTES if args.tokenizer is None else tokens_of(args.tokenizer)
    expected: dict[str, str] = {}
    for engine in args.engine or ["ours"]:
        for draft in DRAFTS:
            for form in ("typed", "untyped"):
                found = {case.name: (case, outcome(case, ENGINES[engine], vocabulary)) for case in cases(draft, form)}
                words = {name: result.word for name, (_, result) in found.items()}
                if engine == "ours":
                    expected |= words
                for name, (case, _) in found.items():
                    if args.show and words[name].startswith(args.show):
                        sys.stdout.write(f"{name}\n    {words[name]}\n    {json.dumps(case.schema)[:300]}\n")
                counts = Counter(word.partition(":")[0].partition(" ")[0] for word in words.values())
                total = len(words)
                sys.stdout.write(f"{engine} {draft} {form}: {total} schemas, {dict(counts)}, right {100 * counts['right'] / total:.1f}%\n")
    if args.write:
        EXPECTED.write_text(json.dumps(expected, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
