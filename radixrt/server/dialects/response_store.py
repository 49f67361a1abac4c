"""The responses that later ones may continue: in memory, bounded in number and size, the oldest forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

MAX_RESPONSES = 4096
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """object: what the client got.  messages: the conversation up to and with the answer, without instructions."""

    object: dict[str, Any]
    messages: Sequence[dict[str, Any]]
    num_bytes: int


class ResponseStore:
    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, object: dict[str, Any], messages: Sequence[dict[str, Any]]) -> None:
        """Keep a response, unless it alone is larger than all may be."""
        num_bytes = len(orjson.dumps([object, list(messages)]))
        if num_bytes > self._max_bytes:
            return
        self.drop(object["id"])
        self._stored[object["id"]] = StoredResponse(object, messages, num_bytes)
        self._num_bytes += num_bytes
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            self.drop(next(iter(self._stored)))

    def get(self, id: str) -> StoredResponse | None:
        return self._stored.get(id)

    def drop(self, id: str) -> bool:
        """Forget a response; False when it is not there."""
        found = self._stored.pop(id, None)
        if found is not None:
            self._num_bytes -= found.num_bytes
        return found is not None
