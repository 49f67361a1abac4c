// The products in plain C++: the definition of what the other paths compute.
#include <cstring>

#include "radixrt/half.h"
#include "radixrt/linear.h"

namespace radixrt {

namespace {

std::uint16_t read_u16(const std::uint8_t *from) {
    std::uint16_t value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

template <WeightType type>
void quantized_panel(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, int tokens, float *out) {
    constexpr bool wide = type == WeightType::q8_0, offset = type == WeightType::q4_1;
    std::memset(out, 0, sizeof(float) * kPanel * static_cast<std::size_t>(tokens));
    for (std::int64_t block = 0; block < blocks; ++block, panel += panel_block_bytes(type)) {
        float d[kPanel], m[kPanel] = {};
        std::int8_t weights[kBlock][kPanel];
        const std::uint8_t *numbers = panel + (offset ? 4 : 2) * kPanel;
        for (int row = 0; row < kPanel; ++row) {
            d[row] = float_of_half(read_u16(panel + 2 * row));
            if (offset) m[row] = float_of_half(read_u16(panel + 2 * kPanel + 2 * row));
            for (int i = 0; i < kBlock; ++i) {
                const int stored = wide ? i : i % (kBlock / 2);
                const std::uint8_t byte = numbers[stored / 4 * 4 * kPanel + 4 * row + stored % 4];
                weights[i][row] = static_cast<std::int8_t>(wide ? byte : i < kBlock / 2 ? byte & 15 : byte >> 4);
            }
        }
        for (int token = 0; token < tokens; ++token) {
            const std::int64_t place = block * rows.tokens + first + token;
            const std::int8_t *a = rows.numbers + place * kBlock;
            const float scale = rows.scales[place], sum = rows.sums[place];
            std::int32_t dot[kPanel] = {};
            for (int i = 0; i < kBlock; ++i)
                for (int row = 0; row < kPanel; ++row) dot[row] += weights[i][row] * a[i];
            for (int row = 0; row < kPanel; ++row) {
                float term;
                if constexpr (type == WeightType::q4_0) {
                    term = d[row] * (static_cast<float>(dot[row]) - 8.0f * sum);
                } else if constexpr (offset) {
                    term = d[row] * static_cast<float>(dot[row]) + m[row] * sum;
                } else {
                    term = d[row] * static_cast<float>(dot[row]);
                }
                out[token * kPanel + row] += term * scale;
            }
        }
    }
}

template <WeightType type>
void float_panel(const std::uint8_t *panel, std::int64_t cols, const float *x, int tokens, float *out) {
    std::memset(out, 0, sizeof(float) * kPanel * static_cast<std::size_t>(tokens));
    for (std::int64_t column = 0; column < cols; ++column) {
        float weights[kPanel];
        if constexpr (type == WeightType::f32) {
            std::memcpy(weights, panel + column * static_cast<std::int64_t>(sizeof(weights)), sizeof(weights));
        } else {
            for (int row = 0; row < kPanel; ++row) weights[row] = float_of_bf16(read_u16(panel + 2 * (column * kPanel + row)));
        }
        for (int token = 0; token < tokens; ++token)
            for (int row = 0; row < kPanel; ++row) out[token * kPanel + row] += weights[row] * x[token * cols + column];
    }
}

}  // namespace

const LinearPath kLinearPortable{
    quantized_panel<WeightType::q8_0>, quantized_panel<WeightType::q4_0>, quantized_panel<WeightType::q4_1>,
    float_panel<WeightType::f32>, float_panel<WeightType::bf16>, nullptr,
};

}  // namespace radixrt
