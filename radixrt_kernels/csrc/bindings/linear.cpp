// Packed weight matrices, the products with them, and the work between products.
#include <memory>
#include <string>
#include <vector>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"
#include "radixrt/activations.h"
#include "radixrt/linear.h"
#include "radixrt/packed_matrix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using radixrt::PackedMatrix;

void unpack_rows(const PackedMatrix &matrix, const Array<const std::int64_t, 1> &rows, const Array<float, 2> &out) {
    check_size("PackedMatrix", "out", out, 0, static_cast<std::int64_t>(rows.shape(0)));
    check_size("PackedMatrix", "out", out, 1, matrix.cols());
    for (std::size_t i = 0; i < rows.shape(0); ++i) {
        if (rows(i) < 0 || rows(i) >= matrix.rows()) throw nb::index_error("[PackedMatrix] no such row");
        matrix.unpack_row(rows(i), out.data() + i * static_cast<std::size_t>(matrix.cols()));
    }
}

void linear(const Array<const float, 2> &x, const PackedMatrix &matrix, const Array<float, 2> &y, bool add) {
    const auto tokens = static_cast<std::int64_t>(x.shape(0)), cols = static_cast<std::int64_t>(x.shape(1));
    check_size("linear", "x", x, 1, matrix.cols());
    check_size("linear", "y", y, 0, tokens);
    check_size("linear", "y", y, 1, matrix.rows());
    const nb::gil_scoped_release release;
    radixrt::QuantizedBuffer buffer;
    radixrt::QuantizedRows rows{};
    if (is_quantized(matrix.type())) {
        rows = buffer.rows(tokens, cols);
        for (std::int64_t token = 0; token < tokens; ++token) radixrt::activation_path().quantize(x.data() + token * cols, cols, rows, token);
    }
    const radixrt::LinearOutput outputs[] = {{&matrix, nullptr, y.data(), matrix.rows(), 0, add}};
    radixrt::linear(x.data(), rows, tokens, outputs, radixrt::thread_pool());
}

void quantize_rows(const Array<const float, 2> &x, const Array<std::int8_t, 3> &numbers, const Array<float, 2> &scales, const Array<float, 2> &sums) {
    const auto tokens = static_cast<std::int64_t>(x.shape(0)), cols = static_cast<std::int64_t>(x.shape(1)), blocks = cols / radixrt::kBlock;
    check_size("quantize_rows", "x", x, 1, blocks * radixrt::kBlock);
    check_size("quantize_rows", "numbers", numbers, 2, radixrt::kBlock);
    for (int dimension = 0; dimension < 2; ++dimension) {
        const std::int64_t size = dimension ? tokens : blocks;
        check_size("quantize_rows", "numbers", numbers, dimension, size);
        check_size("quantize_rows", "scales", scales, dimension, size);
        check_size("quantize_rows", "sums", sums, dimension, size);
    }
    const radixrt::QuantizedRows rows{numbers.data(), scales.data(), sums.data(), tokens};
    for (std::int64_t token = 0; token < tokens; ++token) radixrt::activation_path().quantize(x.data() + token * cols, cols, rows, token);
}

void rms_norm(const Array<const float, 2> &x, const Array<const float, 1> &weight, float eps, const Array<float, 2> &out) {
    const auto size = static_cast<std::int64_t>(x.shape(1));
    check_size("rms_norm", "weight", weight, 0, size);
    check_size("rms_norm", "out", out, 0, static_cast<std::int64_t>(x.shape(0)));
    check_size("rms_norm", "out", out, 1, size);
    for (std::int64_t row = 0; row < static_cast<std::int64_t>(x.shape(0)); ++row)
        radixrt::activation_path().rms_norm(x.data() + row * size, weight.data(), eps, size, out.data() + row * size);
}

void gated(const std::string &activation, const Array<const float, 2> &gate, const Array<const float, 2> &up, const Array<float, 2> &out) {
    for (int dimension = 0; dimension < 2; ++dimension) {
        check_size("gated", "up", up, dimension, static_cast<std::int64_t>(gate.shape(dimension)));
        check_size("gated", "out", out, dimension, static_cast<std::int64_t>(gate.shape(dimension)));
    }
    radixrt::activation_path().gated(radixrt::activation_of(activation), gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), out.data());
}

void rope(const Array<float, 3> &x, const Array<const float, 2> &cos, const Array<const float, 2> &sin) {
    const auto tokens = static_cast<std::int64_t>(x.shape(0)), half = static_cast<std::int64_t>(cos.shape(1));
    check_size("rope", "cos", cos, 0, tokens);
    check_size("rope", "sin", sin, 0, tokens);
    check_size("rope", "sin", sin, 1, half);
    if (2 * half > static_cast<std::int64_t>(x.shape(2))) throw nb::value_error("[rope] more dimensions to turn than a head has");
    const auto heads = static_cast<std::int64_t>(x.shape(1)), head_dim = static_cast<std::int64_t>(x.shape(2));
    for (std::int64_t token = 0; token < tokens; ++token)
        radixrt::activation_path().rope(x.data() + token * heads * head_dim, heads, head_dim, cos.data() + token * half, sin.data() + token * half, half);
}

}  // namespace

void init_linear(nb::module_ &m) {
    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix in the order in which the kernels read it.")
        .def("__init__",
             [](PackedMatrix *self, const std::string &type, std::int64_t rows, std::int64_t cols) {
                 new (self) PackedMatrix(radixrt::weight_type_of(type), rows, cols);
             },
             "type"_a, "rows"_a, "cols"_a)
        .def_prop_ro("type", [](const PackedMatrix &matrix) { return std::string(weight_type_name(matrix.type())); })
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("cols", &PackedMatrix::cols)
        .def_prop_ro("nbytes", &PackedMatrix::bytes)
        .def("pack",
             [](PackedMatrix &matrix, std::int64_t first, const Array<const std::uint8_t, 1> &blocks) {
                 const nb::gil_scoped_release release;
                 matrix.pack(first, items(blocks));
             },
             "first"_a, "blocks"_a, "Fill whole rows from `first` on with the bytes that a file has for them.")
        .def("pack_floats",
             [](PackedMatrix &matrix, std::int64_t first, const Array<const float, 1> &values) {
                 const nb::gil_scoped_release release;
                 matrix.pack_floats(first, items(values));
             },
             "first"_a, "values"_a, "Fill whole rows from `first` on, rounding numbers to the type.")
        .def("unpack_rows", &unpack_rows, "rows"_a, "out"_a, "Write some rows as float32 [rows, cols].");
    m.def("linear", &linear, "x"_a, "matrix"_a, "y"_a, "add"_a = false, "y [tokens, rows] = x [tokens, cols] times the matrix, plus y if `add`.");
    m.def("quantize_rows", &quantize_rows, "x"_a, "numbers"_a, "scales"_a, "sums"_a, "Round rows to int8 in blocks of 32.");
    m.def("rms_norm", &rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a, "The root-mean-square norm of each row.");
    m.def("gated", &gated, "activation"_a, "gate"_a, "up"_a, "out"_a, "out = activation(gate) * up.");
    m.def("rope", &rope, "x"_a, "cos"_a, "sin"_a, "Turn x [tokens, heads, head_dim] in place.");
}
