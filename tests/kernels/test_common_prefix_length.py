"""common_prefix_length: the compiled op, its reference and a plain loop agree."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixrt_kernels import ops, reference

Op = Callable[[Any, int, Any, int], int]
IMPLEMENTATIONS = [pytest.param(reference.common_prefix_length, id="reference")]
if ops.NATIVE:
    IMPLEMENTATIONS.append(pytest.param(ops.common_prefix_length, id="native"))

INT32 = st.integers(-(2**31), 2**31 - 1)
HEAD = st.lists(INT32, max_size=3)
# Long enough to pass the 64 tokens that the compiled op compares at once.
SHARED, TAIL = st.lists(INT32, max_size=150), st.lists(INT32, max_size=70)


def counted(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
@pytest.mark.parametrize("make", [lambda ids: array("i", ids), lambda ids: np.array(ids, dtype=np.int32)], ids=["array", "numpy"])
@given(shared=SHARED, a_head=HEAD, b_head=HEAD, a_tail=TAIL, b_tail=TAIL)
@example(shared=[7] * 128, a_head=[], b_head=[1], a_tail=[], b_tail=[])
@example(shared=[7] * 127, a_head=[1], b_head=[], a_tail=[3], b_tail=[4])
@example(shared=[], a_head=[], b_head=[], a_tail=[], b_tail=[])
def test_agrees_with_a_plain_loop(
    op: Op, make: Callable[[list[int]], Any], shared: list[int], a_head: list[int], b_head: list[int], a_tail: list[int], b_tail: list[int]
) -> None:
    a, b = shared + a_tail, shared + b_tail
    assert op(make(a_head + a), len(a_head), make(b_head + b), len(b_head)) == counted(a, b)


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
@pytest.mark.parametrize("position", [0, 1, 63, 64, 65, 127, 128, 199])
def test_finds_the_one_token_that_differs(op: Op, position: int) -> None:
    a = array("i", range(200))
    b = array("i", a)
    b[position] = -1
    assert op(a, 0, b, 0) == position


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
@pytest.mark.parametrize("start", [-1, 5])
def test_start_outside_the_buffer_is_an_error(op: Op, start: int) -> None:
    tokens = array("i", [1, 2, 3, 4])
    with pytest.raises(ValueError, match="outside"):
        op(tokens, start, tokens, 0)
    with pytest.raises(ValueError, match="outside"):
        op(tokens, 0, tokens, start)


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([1, 2], id="list"),
        pytest.param("ab", id="str"),
        pytest.param(array("q", [1, 2]), id="int64"),
        pytest.param(array("I", [1, 2]), id="uint32"),
        pytest.param(array("f", [1, 2]), id="float"),
        pytest.param(np.zeros((2, 2), np.int32), id="matrix"),
        pytest.param(np.arange(8, dtype=np.int32)[::2], id="strided"),
    ],
)
def test_another_kind_of_buffer_is_an_error(op: Op, wrong: Any) -> None:
    tokens = array("i", [1, 2])
    with pytest.raises(TypeError):
        op(wrong, 0, tokens, 0)
    with pytest.raises(TypeError):
        op(tokens, 0, wrong, 0)


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
def test_buffers_are_given_back(op: Op) -> None:
    tokens = array("i", [1, 2])
    op(tokens, 0, tokens, 0)
    for arguments in ((tokens, 9, tokens, 0), (tokens, 0, [1], 0)):
        with pytest.raises((TypeError, ValueError)):
            op(*arguments)
    tokens.append(3)  # an array that is still borrowed refuses to grow


def test_environment_variable_forces_the_reference() -> None:
    code = "from radixrt_kernels import ops, reference; assert ops.common_prefix_length is reference.common_prefix_length"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"RADIXRT_NO_NATIVE": "1"})
