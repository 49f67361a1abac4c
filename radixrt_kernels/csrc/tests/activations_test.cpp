// Norm, gated activation, rotation and rounding of random rows against their definitions.
#include "check.h"
#include "radixrt/activations.h"
#include "radixrt/packed_matrix.h"

namespace {

using namespace radixrt;
using namespace radixrt::test;

// Numbers of many sizes.
std::vector<float> row(Random &random, std::int64_t size) {
    std::vector<float> made = random.numbers(size);
    for (float &value : made) value = std::ldexp(value, static_cast<int>(random.below(12)) - 6);
    return made;
}

void check_norm(Random &random) {
    const std::int64_t size = 1 + random.below(200);
    const std::vector<float> x = row(random, size), weight = row(random, size);
    std::vector<float> out(x.size());
    activation_path().rms_norm(x.data(), weight.data(), 1e-5f, size, out.data());
    double squares = 0.0;
    for (const float value : x) squares += double{value} * value;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = x[i] * factor * weight[i];
        expect(near(out[i], expected, 1e-5 * std::fabs(expected) + 1e-30), "a norm is off");
    }
}

double activated(Activation activation, double x) {
    switch (activation) {
        case Activation::silu: return x / (1.0 + std::exp(-x));
        case Activation::gelu: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
        case Activation::gelu_tanh: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
        case Activation::relu: return std::max(x, 0.0);
    }
    return 0.0;
}

void check_gated(Random &random) {
    const auto activation = static_cast<Activation>(random.below(4));
    const std::int64_t size = 1 + random.below(200);
    std::vector<float> gate = row(random, size);
    const std::vector<float> up = row(random, size);
    if (random.below(4) == 0) gate[0] = random.below(2) == 0 ? 1e30f : -1e30f;
    std::vector<float> out(gate.size());
    activation_path().gated(activation, gate.data(), up.data(), size, out.data());
    for (std::size_t i = 0; i < gate.size(); ++i) {
        const double expected = activated(activation, gate[i]) * up[i];
        expect(near(out[i], expected, 1e-5 * std::fabs(expected) + 1e-5 * std::fabs(up[i])), "a gated activation is off");
    }
}

void check_rope(Random &random) {
    const std::int64_t half = 1 + random.below(20), head_dim = 2 * half + random.below(9), heads = 1 + random.below(4);
    std::vector<float> cos(static_cast<std::size_t>(half)), sin(cos.size());
    for (std::size_t i = 0; i < cos.size(); ++i) {
        const double angle = 3.0 * random.number();
        cos[i] = static_cast<float>(std::cos(angle));
        sin[i] = static_cast<float>(std::sin(angle));
    }
    const std::vector<float> x = row(random, heads * head_dim);
    std::vector<float> out = x;
    activation_path().rope(out.data(), heads, head_dim, cos.data(), sin.data(), half);
    for (std::int64_t head = 0; head < heads; ++head)
        for (std::int64_t i = 0; i < head_dim; ++i) {
            const auto at = static_cast<std::size_t>(head * head_dim + i), pair = static_cast<std::size_t>(i % half);
            double expected = x[at];
            if (i < half) expected = double{x[at]} * cos[pair] - double{x[at + static_cast<std::size_t>(half)]} * sin[pair];
            else if (i < 2 * half) expected = double{x[at]} * cos[pair] + double{x[at - static_cast<std::size_t>(half)]} * sin[pair];
            expect(near(out[at], expected, i < 2 * half ? 1e-5 * 64 : 0.0), "a rotation is off");
        }
}

void check_quantize(Random &random) {
    const std::int64_t cols = kBlock * (1 + random.below(4));
    std::vector<float> x = row(random, cols);
    const std::int64_t bad = random.below(4) == 0 ? random.below(cols) : -1;
    if (bad >= 0) x[static_cast<std::size_t>(bad)] = random.below(2) == 0 ? INFINITY : NAN;
    if (random.below(4) == 0) std::fill_n(x.begin() + random.below(cols / kBlock) * kBlock, kBlock, 0.0f);
    QuantizedBuffer buffer;
    const QuantizedRows rows = buffer.rows(1, cols);
    activation_path().quantize(x.data(), cols, rows, 0);
    for (std::int64_t block = 0; block < cols / kBlock; ++block) {
        float largest = 0.0f;
        bool finite = true;
        int sum = 0;
        for (std::int64_t i = 0; i < kBlock; ++i) {
            const float value = x[static_cast<std::size_t>(block * kBlock + i)];
            finite = finite && std::isfinite(value);
            largest = std::fmax(largest, std::fabs(value));
            sum += rows.numbers[block * kBlock + i];
        }
        expect(rows.sums[block] == static_cast<float>(sum), "the sum of a block is off");
        expect(std::isnan(rows.scales[block]) == !finite, "a block with a number that is none has a scale");
        for (std::int64_t i = 0; finite && i < kBlock; ++i)
            expect(near(rows.scales[block] * rows.numbers[block * kBlock + i], x[static_cast<std::size_t>(block * kBlock + i)], largest * 0.5001 / 127),
                   "a number is rounded too far");
    }
}

void trial(Random &random) {
    check_norm(random);
    check_gated(random);
    check_rope(random);
    check_quantize(random);
}

}  // namespace

int main(int argc, char **argv) { return run_trials("activations_test", argc, argv, 500, trial); }
