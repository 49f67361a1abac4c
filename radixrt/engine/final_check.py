"""The last look at a constrained answer before it is said to be complete: the schema itself is asked, not its grammar."""

from __future__ import annotations

from collections.abc import Container

from radixrt.grammar import json_check
from radixrt.grammar.spec import JSON_KINDS
from radixrt.types import Finish, FinishReason, GrammarSpec, RequestOutput


class FinalCheck:
    """Follows the text of one answer under a JSON constraint; ``end_ids`` are the tokens that end an answer of the model."""

    def __init__(self, spec: GrammarSpec, end_ids: Container[int]) -> None:
        self._spec = spec
        self._end_ids = end_ids
        self._texts: list[str] = []

    @classmethod
    def of(cls, spec: GrammarSpec | None, end_ids: Container[int]) -> FinalCheck | None:
        """Return the check of a constraint; None where there is nothing to check, or text around the JSON."""
        return cls(spec, end_ids) if spec is not None and spec.kind in JSON_KINDS and spec.options.dormancy is None else None

    def push(self, event: RequestOutput) -> Finish | None:
        """Take in the next event; returns the end to report instead of its own where the whole text breaks the schema.

        A text that a stop string or a stop token of the caller cut off is not judged.
        """
        self._texts.append(event.text_delta)
        if event.finish is None or not self._is_whole(event.finish):
            return None
        fault = json_check.check(self._spec, "".join(self._texts))
        return None if fault is None else Finish(FinishReason.ABORT, message=fault, status=500, code="invalid_answer")

    def _is_whole(self, finish: Finish) -> bool:
        if finish.reason is FinishReason.STOP:
            return finish.matched is None or finish.matched in self._end_ids
        return finish.closed
