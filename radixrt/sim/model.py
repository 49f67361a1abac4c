"""What text a request must get: the definition, with no cache, no pool and no batch.

A context is hashed by a sum over its positions, so that the hash can grow by a token at a time here, and be computed at
once from what the slots hold in the runner.  The next token is a function of that hash, the request's seed and the
tokens its grammar allows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

VOCAB_SIZE = 32
END_OF_TEXT = 0
_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Scramble 64 bits (the SplitMix64 finalizer, Steele et al. 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class HashModel:
    """Weights of the positions [0, context_length), and how tokens are chosen by hashes."""

    def __init__(self, context_length: int) -> None:
        self.weights = [mix(position + 1) | 1 for position in range(context_length)]
        self.weight_array = np.array(self.weights, dtype=np.uint64).view(np.int64)

    def extend(self, context: int, position: int, stored: int) -> int:
        """Return the hash of a context one token longer."""
        return (context + stored * self.weights[position]) & _MASK

    def read(self, stored: np.ndarray) -> int:
        """Return the hash of a context from what its slots hold [n] int64."""
        return int(np.dot(stored, self.weight_array[: len(stored)])) & _MASK

    def choose(self, context: int, seed: int, allowed: Sequence[int] | None = None) -> int:
        """Return the token that follows a context; -1 where none is allowed."""
        noise = mix(context ^ (seed * 0xD1342543DE82EF95 & _MASK))
        if allowed is None:
            return noise % VOCAB_SIZE
        return allowed[noise % len(allowed)] if allowed else -1

    def score(self, context: int, token: int) -> float:
        """Return what stands for the logprob of a token after a context."""
        return -float(mix(context + token) >> 44)


def stored_value(token: int, namespace: int) -> int:
    """What a slot holds of a token: adapters of other namespaces compute other K/V of the same token."""
    return token + 1 + namespace * (VOCAB_SIZE + 1)


class Text:
    """The one right text of a request, as far as it has come."""

    __slots__ = ("context", "model", "namespace", "seed", "tokens")

    def __init__(self, model: HashModel, tokens: Sequence[int], namespace: int, seed: int) -> None:
        self.model = model
        self.tokens = list(tokens)
        self.namespace = namespace
        self.seed = seed
        self.context = model.read(np.array(tokens, dtype=np.int64) + stored_value(0, namespace))

    def push(self, token: int) -> None:
        self.context = self.model.extend(self.context, len(self.tokens), stored_value(token, self.namespace))
        self.tokens.append(token)

    def next_token(self, allowed: Sequence[int] | None) -> int:
        """Return the token that comes next, of those that the grammar allows; None allows any."""
        return self.model.choose(self.context, self.seed, allowed)
