"""Packed matrices, the products with them and the work between products, on every instruction set this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from radixrt_kernels import reference
from radixrt_kernels.ops import NATIVE

if not NATIVE:
    pytest.skip("nothing was compiled", allow_module_level=True)

from radixrt_kernels import _native

ISAS = ["portable", "avx2", "avx512"][: ["portable", "avx2", "avx512"].index(_native.detected_isa()) + 1]
QUANTIZED = ["q8_0", "q4_0", "q4_1"]
SHAPES = [(16, 32), (48, 96), (5, 64), (37, 160)]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    isa, count = _native.cpu_isa(), _native.num_threads()
    yield
    _native.set_cpu_isa(isa)
    _native.set_num_threads(count)


def random_matrix(rows: int, cols: int, seed: int = 0) -> Tensor:
    """Rows of very different sizes, one of them zero."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, cols, generator=generator) * torch.logspace(-3, 2, rows)[:, None]
    matrix[rows // 2] = 0.0
    return matrix


def unpacked(matrix: _native.PackedMatrix) -> Tensor:
    out = torch.empty(matrix.rows, matrix.cols)
    matrix.unpack_rows(torch.arange(matrix.rows), out)
    return out


def packed(kind: str, values: Tensor) -> _native.PackedMatrix:
    matrix = _native.PackedMatrix(kind, *values.shape)
    matrix.pack_floats(0, values.flatten())
    return matrix


def product(x: Tensor, matrix: _native.PackedMatrix) -> Tensor:
    y = torch.full((len(x), matrix.rows), torch.nan)
    _native.linear(x, matrix, y)
    return y


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    blocks = x.shape[1] // 32
    numbers, scales, sums = torch.empty(blocks, len(x), 32, dtype=torch.int8), torch.empty(blocks, len(x)), torch.empty(blocks, len(x))
    _native.quantize_rows(x, numbers, scales, sums)
    return numbers, scales, sums


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_of_a_file_are_kept_exactly(shape: tuple[int, int], kind: str) -> None:
    quantization = GGMLQuantizationType[kind.upper()]
    blocks = quantize(random_matrix(*shape).numpy(), quantization)
    matrix = _native.PackedMatrix(kind, *shape)
    half = shape[0] // 2
    for first, part in ((half, blocks[half:]), (0, blocks[:half])):
        matrix.pack(first, torch.from_numpy(part).flatten())
    assert torch.equal(unpacked(matrix), torch.from_numpy(dequantize(blocks, quantization)))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_rounding_is_as_close_as_the_file_format_allows(kind: str) -> None:
    values = random_matrix(40, 96)
    theirs = torch.from_numpy(dequantize(quantize(values.numpy(), GGMLQuantizationType[kind.upper()]), GGMLQuantizationType[kind.upper()]))
    ours = unpacked(packed(kind, values))
    assert float((ours - values).square().sum()) <= 1.02 * float((theirs - values).square().sum())
    assert torch.equal(unpacked(packed(kind, ours)), ours) or kind == "q4_1"


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_float_formats_are_torch_s(kind: str) -> None:
    values = random_matrix(19, 45)
    expected = values if kind == "f32" else values.bfloat16().float()
    assert torch.equal(unpacked(packed(kind, values)), expected)
    raw = _native.PackedMatrix(kind, 19, 45)
    raw.pack(0, (values if kind == "f32" else values.bfloat16()).contiguous().view(torch.uint8).flatten())
    assert torch.equal(unpacked(raw), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 31, 32, 33, 70])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantised_product_is_bit_for_bit_its_definition(kind: str, tokens: int, isa: str) -> None:
    _native.set_cpu_isa(isa)
    rows, cols = 37, 160
    values, x = random_matrix(rows, cols), random_matrix(tokens, cols, seed=1)
    blocks = quantize(values.numpy(), GGMLQuantizationType[kind.upper()])
    matrix = _native.PackedMatrix(kind, rows, cols)
    matrix.pack(0, torch.from_numpy(blocks).flatten())
    assert torch.equal(product(x, matrix), reference.quantized_linear(x, torch.from_numpy(blocks), kind))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_largest_numbers_do_not_overflow(kind: str, isa: str) -> None:
    """Every number at the end of its range, weights of -128 among them."""
    _native.set_cpu_isa(isa)
    cols = 64
    for value in (0x80, 0x7F, 0xFF, 0x00):
        halves = np.array([1.0, 2.0][: 1 + (kind == "q4_1")], np.float16).view(np.uint8)
        block = np.concatenate([halves, np.full(32 if kind == "q8_0" else 16, value, np.uint8)])
        blocks = torch.from_numpy(np.tile(block, (16, cols // 32)))
        matrix = _native.PackedMatrix(kind, 16, cols)
        matrix.pack(0, blocks.flatten())
        for sign in (1.0, -1.0):
            x = torch.full((3, cols), sign)
            assert torch.equal(product(x, matrix), reference.quantized_linear(x, blocks, kind))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("tokens", [1, 4, 5, 6, 7, 13, 40])
def test_float_product_is_near_its_definition(tokens: int, kind: str, isa: str) -> None:
    _native.set_cpu_isa(isa)
    values, x = random_matrix(37, 45), random_matrix(tokens, 45, seed=1)
    matrix = packed(kind, values)
    torch.testing.assert_close(product(x, matrix), (x.double() @ unpacked(matrix).double().T).float(), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*QUANTIZED, "f32", "bf16"])
def test_a_row_does_not_depend_on_the_others_or_on_threads(kind: str, isa: str) -> None:
    _native.set_cpu_isa(isa)
    matrix, x = packed(kind, random_matrix(100, 96)), random_matrix(75, 96, seed=2)
    whole = product(x, matrix)
    for count in (1, 3):
        _native.set_num_threads(count)
        for size in (1, 2, 3, 7, 33, 64):
            assert torch.equal(torch.cat([product(part.contiguous(), matrix) for part in x.split(size)]), whole)


def test_what_was_there_can_be_added_to() -> None:
    matrix, x, y = packed("q8_0", random_matrix(20, 64)), random_matrix(3, 64, seed=1), torch.randn(3, 20)
    expected = y + product(x, matrix)
    _native.linear(x, matrix, y, add=True)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_are_rounded_as_defined(isa: str) -> None:
    _native.set_cpu_isa(isa)
    x = random_matrix(9, 96, seed=3)
    x[0, 5], x[1, 40], x[2] = torch.inf, torch.nan, 1e-38
    for ours, expected in zip(rounded_rows(x), reference.quantize_rows(x), strict=True):
        torch.testing.assert_close(ours, expected, atol=0.0, rtol=0.0, equal_nan=True)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_what_is_not_finite_shows_in_the_product(kind: str) -> None:
    x = torch.randn(3, 64)
    x[1, 33] = torch.inf
    y = product(x, packed(kind, torch.randn(16, 64)))
    assert y.isfinite().all(dim=1).tolist() == [True, False, True]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1, 8, 45, 576])
def test_rms_norm(size: int, isa: str) -> None:
    x, weight = torch.randn(7, size), torch.randn(size)
    outs = []
    for name in {"portable", isa}:
        _native.set_cpu_isa(name)
        out = torch.empty_like(x)
        _native.rms_norm(x, weight, 1e-5, out)
        outs.append(out)
    torch.testing.assert_close(outs[0], torch.nn.functional.rms_norm(x, (size,), weight, 1e-5), atol=1e-6, rtol=2e-6)
    assert torch.equal(outs[0], outs[-1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_gated(activation: str, isa: str) -> None:
    gate = torch.cat((torch.linspace(-200, 200, 997), torch.linspace(-9, 9, 1003), torch.tensor([0.0, -0.0, torch.nan])))[None]
    up = torch.randn(gate.shape)
    outs = []
    for name in {"portable", isa}:
        _native.set_cpu_isa(name)
        out = torch.empty_like(gate)
        _native.gated(activation, gate, up, out)
        outs.append(out)
    expected = reference.gated(activation, gate, up)
    torch.testing.assert_close(outs[0], expected, atol=1e-6, rtol=1e-5, equal_nan=True)
    torch.testing.assert_close(outs[0], outs[-1], atol=0.0, rtol=0.0, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [2, 12, 16])
def test_rope(half: int, isa: str) -> None:
    _native.set_cpu_isa(isa)
    x, angles = torch.randn(5, 3, 32), torch.randn(5, half)
    expected = reference.rope(x, angles.cos(), angles.sin())
    turned = x.clone()
    _native.rope(turned, angles.cos(), angles.sin())
    torch.testing.assert_close(turned, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(turned[..., 2 * half :], x[..., 2 * half :])


@pytest.mark.parametrize(
    ("kind", "rows", "cols", "message"),
    [("q4_0", 4, 33, "blocks of 32"), ("f32", 0, 4, "no matrix"), ("f32", 4, -1, "no matrix"), ("q5_0", 4, 32, "not one of")],
)
def test_a_matrix_that_cannot_be_is_refused(kind: str, rows: int, cols: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.PackedMatrix(kind, rows, cols)


def test_rows_outside_a_matrix_are_refused() -> None:
    matrix = _native.PackedMatrix("q8_0", 4, 32)
    for first, size in ((0, 33), (3, 2 * 34), (5, 0), (-1, 34)):
        with pytest.raises(ValueError, match="whole rows"):
            matrix.pack(first, torch.zeros(size, dtype=torch.uint8))
    with pytest.raises(ValueError, match="whole rows"):
        matrix.pack_floats(1, torch.zeros(4 * 32))
    with pytest.raises(IndexError):
        matrix.unpack_rows(torch.tensor([4]), torch.empty(1, 32))
    with pytest.raises(ValueError, match="size"):
        _native.linear(torch.zeros(2, 64), matrix, torch.zeros(2, 4))
