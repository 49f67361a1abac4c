"""Records served requests as a trace that can be replayed, and out of which no text can be read.

One JSON object a line in Mooncake's form: arrival in ms, lengths, and an id for each block of tokens, equal for equal
prefixes.  Ids are keyed hashes: without the key, which is made at random and kept nowhere, nobody can test a guess.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

logger = logging.getLogger(__name__)

# Ids stay below 2**53, so that every JSON reader keeps them whole.
_ID_BYTES = 6


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    arrival: float
    tokens: array[int]
    num_prompt: int
    namespace: Hashable


class TraceRecorder:
    """Appends requests to a file, in the order in which they end; ``key=None`` makes a random key.

    Raises OSError when the file cannot be opened.  When it cannot be written later, recording stops and says so in the log.
    """

    def __init__(self, path: Path, *, block_size: int = 16, key: bytes | None = None) -> None:
        self._block_size = block_size
        self._key = secrets.token_bytes(32) if key is None else key
        self._file = path.open("a", encoding="utf-8")
        self._open: dict[int, _Open] = {}
        self._began: float | None = None

    def __enter__(self) -> TraceRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, uid: int, prompt: Sequence[int], namespace: Hashable, now: float) -> None:
        """A request has come; ``now`` in seconds of any clock."""
        self._began = now if self._began is None else self._began
        self._open[uid] = _Open(now - self._began, array("i", prompt), len(prompt), namespace)

    def push(self, uid: int, tokens: Sequence[int]) -> None:
        """A request has generated tokens."""
        self._open[uid].tokens.extend(tokens)

    def end(self, uid: int) -> None:
        """A request has ended, however it did."""
        request = self._open.pop(uid)
        tokens, num_prompt = request.tokens, request.num_prompt
        try:
            self.add(request.arrival, tokens[:num_prompt], tokens[num_prompt:], request.namespace)
            self._file.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            if not self._file.closed:
                logger.error("the trace cannot be written, and ends here: %s", error)
                self.close()

    def add(self, arrival: float, prompt: Sequence[int], output: Sequence[int], namespace: Hashable = ()) -> None:
        """Append one request; ``arrival`` in seconds since the trace began."""
        size = self._block_size
        tokens = array("i", prompt)
        length = len(tokens)
        whole = length // size
        tail = tokens[whole * size :]
        tokens.extend(output)
        ids = self._ids(tokens, namespace)
        prompt_ids = ids[:whole]
        if tail:
            prompt_ids.append(self._ids(tokens[:length], namespace)[-1])
        line = {
            "timestamp": round(1000 * arrival), "input_length": length, "output_length": len(output), "hash_ids": prompt_ids,
            "block_size": size, "output_hash_ids": ids[whole:],
        }
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Write what is still held back, and close the file."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _ids(self, tokens: array[int], namespace: Hashable) -> list[int]:
        """An id for each block, of everything up to its end."""
        digest = hashlib.blake2b(repr(namespace).encode(), key=self._key, digest_size=_ID_BYTES)
        ids = []
        for at in range(0, len(tokens), self._block_size):
            digest.update(tokens[at : at + self._block_size].tobytes())
            ids.append(int.from_bytes(digest.copy().digest(), "little"))
        return ids
