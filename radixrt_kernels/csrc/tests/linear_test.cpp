// Random products with packed matrices against plain loops over the same rounded numbers, and each row against itself alone.
#include <memory>
#include <span>

#include "check.h"
#include "radixrt/linear.h"

namespace {

using namespace radixrt;
using namespace radixrt::test;

struct Activations {
    std::int64_t tokens, cols;
    std::vector<float> x;
    QuantizedBuffer buffer;
    QuantizedRows rows{};

    Activations(std::vector<float> values, std::int64_t tokens, bool quantize) : tokens(tokens), cols(0), x(std::move(values)) {
        cols = static_cast<std::int64_t>(x.size()) / tokens;
        if (!quantize) return;
        rows = buffer.rows(tokens, cols);
        for (std::int64_t token = 0; token < tokens; ++token) activation_path().quantize(x.data() + token * cols, cols, rows, token);
    }

    // What the products read.
    double at(std::int64_t token, std::int64_t column) const {
        if (rows.numbers == nullptr) return x[static_cast<std::size_t>(token * cols + column)];
        const std::int64_t place = column / kBlock * tokens + token;
        return double{rows.scales[place]} * rows.numbers[place * kBlock + column % kBlock];
    }
};

void check_rounding(const PackedMatrix &matrix, const std::vector<float> &weights) {
    const std::int64_t cols = matrix.cols();
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t r = 0; r < matrix.rows(); ++r) {
        matrix.unpack_row(r, row.data());
        for (std::int64_t c = 0; c < cols; ++c) {
            // Weights lie in [-1, 1): half a step of a block, and what half precision takes off its d and m.
            double step = 0.0;
            if (matrix.type() == WeightType::bf16) step = 0x1p-8;
            if (matrix.type() == WeightType::q8_0) step = 0.6 / 127;
            if (matrix.type() == WeightType::q4_1) step = 0.6 * 2 / 15;
            if (matrix.type() == WeightType::q4_0) step = 1.1 / 8;  // the end of the range away from the largest is one step short
            expect(near(row[static_cast<std::size_t>(c)], weights[static_cast<std::size_t>(r * cols + c)], step), "a weight is rounded too far");
        }
    }
}

void trial(Random &random) {
    static ThreadPool threads(3);
    const auto type = static_cast<WeightType>(random.below(5));
    const bool quantize = is_quantized(type);
    const std::int64_t cols = quantize ? kBlock * (1 + random.below(random.below(4) == 0 ? 30 : 6)) : 1 + random.below(150);
    const std::int64_t tokens = 1 + random.below(random.below(2) == 0 ? 4 : 70);
    Activations in(random.numbers(tokens * cols), tokens, quantize);

    std::vector<std::unique_ptr<PackedMatrix>> matrices;
    std::vector<std::vector<float>> biases;
    std::vector<LinearOutput> outputs;
    const std::int64_t count = 1 + random.below(3);
    std::int64_t stride = random.below(5);
    for (std::int64_t i = 0; i < count; ++i) {
        // More panels, now and then, than are multiplied between two spreadings of eight tokens.
        const std::int64_t rows = 1 + random.below(random.below(20) == 0 ? 1300 : 50);
        matrices.push_back(std::make_unique<PackedMatrix>(type, rows, cols));
        const std::vector<float> weights = random.numbers(rows * cols);
        const std::int64_t split = random.below(rows + 1);
        matrices.back()->pack_floats(0, std::span(weights).first(static_cast<std::size_t>(split * cols)));
        matrices.back()->pack_floats(split, std::span(weights).subspan(static_cast<std::size_t>(split * cols)));
        check_rounding(*matrices.back(), weights);
        biases.push_back(random.below(2) == 0 ? std::vector<float>{} : random.numbers(rows));
        outputs.push_back({matrices.back().get(), biases.back().empty() ? nullptr : biases.back().data(), nullptr, 0, stride, random.below(2) == 0});
        stride += rows;
    }
    const std::vector<float> before = random.numbers(tokens * stride);
    std::vector<float> y = before;
    for (LinearOutput &output : outputs) output.y = y.data(), output.stride = stride;
    linear(in.x.data(), in.rows, tokens, outputs, threads);

    std::vector<float> expected = before, row(static_cast<std::size_t>(cols));
    for (const LinearOutput &output : outputs) {
        for (std::int64_t r = 0; r < output.matrix->rows(); ++r) {
            output.matrix->unpack_row(r, row.data());
            for (std::int64_t token = 0; token < tokens; ++token) {
                double sum = output.bias == nullptr ? 0.0 : output.bias[r], size = 1.0;
                for (std::int64_t c = 0; c < cols; ++c) {
                    const double term = in.at(token, c) * row[static_cast<std::size_t>(c)];
                    sum += term;
                    size += std::fabs(term);
                }
                float &at = expected[static_cast<std::size_t>(token * stride + output.column + r)];
                if (output.add) sum += at;
                expect(near(y[static_cast<std::size_t>(token * stride + output.column + r)], sum, 2e-6 * size), "a product is off");
                at = y[static_cast<std::size_t>(token * stride + output.column + r)];
            }
        }
    }
    expect(y == expected, "something beside the products was written");

    const std::int64_t token = random.below(tokens);
    const auto first = in.x.begin() + token * cols;
    Activations one({first, first + cols}, 1, quantize);
    std::vector<float> alone(before.begin() + token * stride, before.begin() + (token + 1) * stride);
    for (LinearOutput &output : outputs) output.y = alone.data();
    linear(one.x.data(), one.rows, 1, outputs, threads);
    expect(std::equal(alone.begin(), alone.end(), y.begin() + token * stride), "a row alone has other bits");
}

}  // namespace

int main(int argc, char **argv) { return run_trials("linear_test", argc, argv, 200, trial); }
