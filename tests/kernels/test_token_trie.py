"""Token masks and reached states: native, reference and a plain walk agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixrt_kernels import ops, reference

IMPLEMENTATIONS = [pytest.param(reference, id="reference")]
if ops.NATIVE:
    from radixrt_kernels import _native

    IMPLEMENTATIONS.append(pytest.param(_native, id="native"))

BYTES = st.sampled_from([0, 1, 97, 98, 254, 255])
SPELLINGS = st.lists(st.lists(BYTES, min_size=1, max_size=4).map(bytes), max_size=20)


@st.composite
def automata(draw: st.DrawFn) -> list[dict[int, int]]:
    """States as dictionaries from byte to state, with runs of bytes that lead to the same state."""
    num_states = draw(st.integers(1, 5))
    states = []
    for _ in range(num_states):
        edges = draw(st.lists(st.tuples(BYTES, st.integers(0, 255), st.integers(0, num_states - 1)), max_size=4))
        states.append({byte: target for low, size, target in edges for byte in range(low, min(low + size, 255) + 1)})
    return states


def tables(states: list[dict[int, int]], live: list[bool]) -> tuple[np.ndarray, bytes, bytes, np.ndarray, bytes]:
    """Those states as flat tables, one edge a run of bytes."""
    first, low, high, target = [0], bytearray(), bytearray(), []
    for state in states:
        for byte in sorted(state):
            if target and len(target) > first[-1] and high[-1] == byte - 1 and target[-1] == state[byte]:
                high[-1] = byte
            else:
                low.append(byte)
                high.append(byte)
                target.append(state[byte])
        first.append(len(target))
    return np.array(first, dtype=np.int32), bytes(low), bytes(high), np.array(target, dtype=np.int32), bytes(live)


def trie(implementation: Any, spellings: list[bytes]) -> Any:
    """The trie of tokens whose ids are their places in the list."""
    order = sorted(range(len(spellings)), key=lambda token: spellings[token])
    ends = np.cumsum([len(spellings[token]) for token in order], dtype=np.int32)
    return implementation.TokenTrie(b"".join(sorted(spellings)), ends, np.array(order, dtype=np.int32))


def leads_to(states: list[dict[int, int]], live: list[bool], start: int, spelled: bytes) -> int | None:
    state: int | None = start
    for byte in spelled:
        state = None if state is None else states[state].get(byte)
    return state if state is not None and live[state] else None


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(st.data())
def test_tokens_are_allowed_where_their_bytes_lead(implementation: Any, data: st.DataObject) -> None:
    spellings, states = data.draw(SPELLINGS), data.draw(automata())
    live = data.draw(st.lists(st.booleans(), min_size=len(states), max_size=len(states)))
    automaton, tokens = implementation.ByteAutomaton(*tables(states, live)), trie(implementation, spellings)
    for state in range(len(states)):
        reached = {token: leads_to(states, live, state, spelled) for token, spelled in enumerate(spellings)}
        row = np.full((len(spellings) + 31) // 32 + 1, -1, dtype=np.int32)
        tokens.fill_mask(automaton, state, row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [token for token, target in reached.items() if target is not None]
        found = tokens.reach(automaton, state)
        assert sorted(target for target, _ in found) == sorted({target for target in reached.values() if target is not None})
        for target, token in found:
            assert spellings[token] == min(spelled for other, spelled in enumerate(spellings) if reached[other] == target)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(SPELLINGS, st.lists(BYTES, max_size=6).map(bytes))
def test_a_text_starts_with_tokens_and_longer_ones_with_all_of_it(implementation: Any, spellings: list[bytes], text: bytes) -> None:
    tokens = trie(implementation, spellings)
    for start in (text, *spellings):
        row = np.full((len(spellings) + 31) // 32 + 1, -1, dtype=np.int32)
        is_longer = tokens.fill_starts(start, row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [token for token, spelled in enumerate(spellings) if start.startswith(spelled)]
        assert is_longer == any(spelled.startswith(start) and spelled != start for spelled in spellings)


ONE_STATE = tables([{97: 0}], [True])
BAD_TABLES: list[Callable[[], list[Any]]] = [
    lambda: [np.array([0, 2], dtype=np.int32), *ONE_STATE[1:]],
    lambda: [np.array([0, 1, 1], dtype=np.int32), *ONE_STATE[1:]],
    lambda: [*ONE_STATE[:2], b"\x60", *ONE_STATE[3:]],
    lambda: [*ONE_STATE[:3], np.array([1], dtype=np.int32), ONE_STATE[4]],
    lambda: [*ONE_STATE[:3], np.array([-1], dtype=np.int32), ONE_STATE[4]],
    lambda: [np.array([0, 2], dtype=np.int32), b"ab", b"bb", np.array([0, 0], dtype=np.int32), b"\1"],
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bad", BAD_TABLES)
def test_tables_that_contradict_each_other_are_refused(implementation: Any, bad: Callable[[], list[Any]]) -> None:
    with pytest.raises(ValueError, match="contradict"):
        implementation.ByteAutomaton(*bad())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("text", "ends"), [(b"ba", [1, 2]), (b"aba", [2, 3]), (b"a", [0, 1]), (b"ab", [1]), (b"a", [1, 2])])
def test_tokens_out_of_order_are_refused(implementation: Any, text: bytes, ends: list[int]) -> None:
    with pytest.raises(ValueError, match="TokenTrie"):
        implementation.TokenTrie(text, np.array(ends, dtype=np.int32), np.arange(len(ends), dtype=np.int32))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("state", "num_words"), [(-1, 1), (1, 1), (0, 0)])
def test_states_and_rows_that_do_not_fit_are_refused(implementation: Any, state: int, num_words: int) -> None:
    with pytest.raises(ValueError, match="too short"):
        trie(implementation, [b"a"]).fill_starts(b"a", np.zeros(0, dtype=np.int32))
    with pytest.raises(ValueError, match=r"no such state|too short"):
        trie(implementation, [b"a"]).fill_mask(implementation.ByteAutomaton(*ONE_STATE), state, np.zeros(num_words, dtype=np.int32))
