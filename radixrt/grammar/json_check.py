"""The last check of a finished JSON answer: the schema itself is asked, not what was made of it.

It finds what a grammar got wrong.  Of a key that is there twice the last counts, as it does for those who read the answer.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import Any

import jsonschema_rs

from radixrt.errors import GrammarError
from radixrt.grammar.schema.document import META, dialect
from radixrt.types import GrammarSpec

MAX_SHOWN = 200


def check(spec: GrammarSpec, text: str) -> str | None:
    """Return what is wrong with a finished text of a JSON constraint; None when nothing is, or the constraint is another.

    Formats are annotations unless the schema's dialect says otherwise, and so are not checked.
    """
    if spec.kind not in ("json_schema", "json_object"):
        return None
    try:
        value = json.loads(text, parse_float=_float, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"The answer is not valid JSON: {error}"[:MAX_SHOWN]
    if spec.kind == "json_object":
        return None if isinstance(value, dict) else "The answer is not a JSON object."
    try:
        _validator(spec.text).validate(value)
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"/{step}" for step in error.instance_path)
        return f"The answer does not meet the schema at {place or '/'}: {error.message}"[:MAX_SHOWN]
    except (ValueError, GrammarError) as error:
        return f"The answer could not be checked: {error}"[:MAX_SHOWN]
    return None


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """The validator of a schema; it fetches nothing.  A schema that names no dialect is read as the grammar's was."""
    schema = json.loads(text)
    if isinstance(schema, dict) and "$schema" not in schema:
        schema = {"$schema": META[dialect(schema)], **schema}
    return jsonschema_rs.validator_for(schema, offline=True, validate_formats=False)


def _float(text: str) -> float:
    """A number too large for a float is the largest there is: JSON has no infinity, and the validator would read one as null."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
