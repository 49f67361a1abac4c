"""JSON extraction: the schema holds the form, the model fills it in, and the value of the variable is a Python object.

Instructions and example are cached once for the whole batch.
"""

from __future__ import annotations

import json

from radixlang import State, function, gen
from report import show

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["person", "place", "thing"]},
        "year": {"type": "integer", "minimum": 0, "maximum": 2100},
        "tags": {"type": "array", "items": {"enum": ["art", "science", "sport"]}, "maxItems": 2},
    },
    "required": ["name", "kind", "year", "tags"],
    "additionalProperties": False,
}
EXAMPLE = """Extract what the text is about as JSON.

Text: Marie Curie won her first Nobel Prize in 1903 for her work on radiation.
JSON: {"name": "Marie Curie", "kind": "person", "year": 1903, "tags": ["science"]}

"""
TEXTS = (
    "The Eiffel Tower was finished in 1889 and is visited by millions of people.",
    "Pele won his first World Cup in 1958, when he was seventeen.",
    "The telescope that Galileo pointed at the sky in 1609 magnified twenty times.",
)


@function
def extract(s: State, text: str) -> None:
    s += EXAMPLE + f"Text: {text}\nJSON: " + gen("record", 96, json_schema=SCHEMA)


def main() -> list[State]:
    states: list[State] = extract.run_batch([{"text": text} for text in TEXTS], temperature=0)
    for state in states:
        print(json.loads(state["record"]))
    return states


if __name__ == "__main__":
    show(main)
