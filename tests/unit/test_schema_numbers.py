"""Numbers that doubles do not tell apart, and bounds where llguidance's own arithmetic goes wrong."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from grammar_walk import BYTES, accepts

from radixrt.errors import GrammarError
from radixrt.grammar import llguidance_engine, spec

INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}


def compiled(schema: dict[str, Any]) -> Any:
    return llguidance_engine.compile(spec.json_schema(json.dumps(schema)), BYTES)


def is_meant(schema: dict[str, Any], text: str) -> bool:
    number = Fraction(text)
    return (
        number >= Fraction(str(schema.get("minimum", text)))
        and number <= Fraction(str(schema.get("maximum", text)))
        and ("exclusiveMinimum" not in schema or number > Fraction(str(schema["exclusiveMinimum"])))
        and ("exclusiveMaximum" not in schema or number < Fraction(str(schema["exclusiveMaximum"])))
    )


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize(("low", "high"), [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
def test_no_number_beyond_large_bounds_is_accepted(kind: str, low: str, high: str) -> None:
    # Among these are bounds near the end of int64, in which the engine recursed until its process died.
    lows = [-(2**63) - 1, -(2**63), -(2**63) + 1, -(2**62) - 1, -(10**16), -(2**53), 5, 2**53 + 1]
    highs = [-(2**63) + 1, -(2**62) - 1, 5, 2**53 + 1, 10**16, 2**63 - 1, 2**63, 10**25]
    for least, most in product(lows, highs):
        schema = {"type": kind, low: least, high: most}
        try:
            grammar = compiled(schema)
        except GrammarError:
            continue
        for number in (least - 1, least, least + 1, most - 1, most, most + 1):
            assert is_meant(schema, str(number)) or not accepts(grammar, str(number)), (schema, number)


@pytest.mark.parametrize("bounds", [INT64, {**INT64, "minimum": 0}, {"minimum": -(2**63)}, {"maximum": 2**64 - 1}])
def test_bounds_of_machine_integers_leave_what_they_allow(bounds: dict[str, int]) -> None:
    grammar = compiled({"type": "integer", **bounds})
    for number in (0, 17, 2**53 + 1, 1234567890123456789, 9_000_000_000_000_000_001):
        assert accepts(grammar, str(number))


@pytest.mark.parametrize("exclusive", [False, True], ids=["inclusive", "exclusive"])
@pytest.mark.parametrize(
    ("excluded", "near", "inside"), [(0, 0.5, "0.25"), (0, 1e-7, "0.00000005"), (5, 5.01, "5.002"), (-5, -4.5, "-4.75")]
)
def test_whole_number_that_is_excluded_is_not_accepted_beside_one_that_differs_in_decimals(
    excluded: int, near: float, inside: str, exclusive: bool
) -> None:
    above = compiled({"type": "number", "exclusiveMinimum": excluded, "exclusiveMaximum" if exclusive else "maximum": near})
    below = compiled({"type": "number", "exclusiveMaximum": -excluded, "exclusiveMinimum" if exclusive else "minimum": -near})
    assert accepts(above, inside)
    assert accepts(below, inside[1:] if inside.startswith("-") else f"-{inside}")
    for text in (str(excluded), f"{excluded}.0", f"{excluded}.00"):
        assert not accepts(above, text)
    for text in (str(-excluded), "-0", f"{-excluded}.0", f"{-excluded}.00"):
        assert not accepts(below, text)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63) + 1, 10**40, 1e100, 1000000000000000.5, 5e-324])
def test_value_that_would_be_written_as_another_is_refused(value: float) -> None:
    for schema in ({"const": value}, {"enum": [1, [{"a": value}]]}):
        with pytest.raises(GrammarError, match="more digits than a double tells apart"):
            compiled(schema)


@pytest.mark.parametrize("value", [0, -1, 2**53, -(2**53), 10**16, 9 * 10**18, 0.1, 1e-7, 3.141592653589793, 123456.789])
def test_value_is_written_as_it_is_given(value: float) -> None:
    text = format(value, "d" if isinstance(value, int) else "").replace("1e-07", "0.0000001")
    assert accepts(compiled({"const": value}), text)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"const": "\0"}, "enum"),
        ({"type": "object", "properties": {"\1": {}}, "required": ["\1"]}, "properties"),
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]{3}$"}, "minProperties": 2}, "minProperties"),
    ],
)
def test_schema_that_only_cannot_be_said_is_not_called_impossible(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises(GrammarError, match="cannot be enforced") as caught:
        compiled(schema)
    assert caught.value.keyword == keyword
