// The products on NEON: four rows of a panel in the lanes of a register, four columns in each lane.  Included once without and once
// with the instructions that multiply four bytes and add them up.
#pragma once

#include <arm_neon.h>
#include <cstdint>
#include <cstring>

#include "radixrt/linear.h"

namespace radixrt {
namespace {

constexpr int kQuads = kPanel / 4;

inline float32x4_t load_halves(const std::uint8_t *from) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }

inline int8x16_t four_columns(const std::int8_t *a) {
    std::int32_t bytes;
    std::memcpy(&bytes, a, sizeof(bytes));
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

// The numbers of four columns of four rows (``columns`` counts fours) of a block, as signed bytes.
template <WeightType type>
inline int8x16_t load_numbers(const std::uint8_t *numbers, int columns, int quad) {
    if constexpr (type == WeightType::q8_0) {
        return vreinterpretq_s8_u8(vld1q_u8(numbers + 64 * columns + 16 * quad));
    } else {
        const uint8x16_t both = vld1q_u8(numbers + 64 * (columns % 4) + 16 * quad);
        return vreinterpretq_s8_u8(columns < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4));
    }
}

#if defined(__ARM_FEATURE_DOTPROD)

// The dot products of a block's rows with one token's numbers.
struct Sums {
    int32x4_t of_rows[kQuads];

    Sums() {
        for (int32x4_t &sum : of_rows) sum = vdupq_n_s32(0);
    }
    void add(int quad, int8x16_t weights, int8x16_t column) { of_rows[quad] = vdotq_s32(of_rows[quad], weights, column); }
    int32x4_t rows(int quad) const { return of_rows[quad]; }
};

#else

struct Sums {
    int32x4_t of_pairs[2 * kQuads];  // of two rows each, whose columns 0 and 1, and 2 and 3, lie apart

    Sums() {
        for (int32x4_t &sum : of_pairs) sum = vdupq_n_s32(0);
    }
    void add(int quad, int8x16_t weights, int8x16_t column) {
        of_pairs[2 * quad] = vpadalq_s16(of_pairs[2 * quad], vmull_s8(vget_low_s8(weights), vget_low_s8(column)));
        of_pairs[2 * quad + 1] = vpadalq_s16(of_pairs[2 * quad + 1], vmull_s8(vget_high_s8(weights), vget_high_s8(column)));
    }
    int32x4_t rows(int quad) const { return vpaddq_s32(of_pairs[2 * quad], of_pairs[2 * quad + 1]); }
};

#endif

// y = y + scale * (d * dot [+ m * sum of a]) for every block of a panel and some tokens.
template <WeightType type, int tokens>
void few(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, float *out) {
    float32x4_t y[tokens][kQuads];
    for (int token = 0; token < tokens; ++token)
        for (float32x4_t &quad : y[token]) quad = vdupq_n_f32(0.0f);
    std::int64_t place = first;
    for (std::int64_t block = 0; block < blocks; ++block, panel += panel_block_bytes(type), place += rows.tokens) {
        const std::uint8_t *numbers = panel + (type == WeightType::q4_1 ? 4 : 2) * kPanel;
        Sums sums[tokens];
        for (int j = 0; j < kBlock / 4; ++j) {
            int8x16_t columns[tokens];
            for (int token = 0; token < tokens; ++token) columns[token] = four_columns(rows.numbers + (place + token) * kBlock + 4 * j);
            for (int quad = 0; quad < kQuads; ++quad) {
                const int8x16_t weights = load_numbers<type>(numbers, j, quad);
                for (int token = 0; token < tokens; ++token) sums[token].add(quad, weights, columns[token]);
            }
        }
        for (int quad = 0; quad < kQuads; ++quad) {
            const float32x4_t d = load_halves(panel + 8 * quad);
            for (int token = 0; token < tokens; ++token) {
                const float32x4_t product = vcvtq_f32_s32(sums[token].rows(quad));
                const float sum = rows.sums[place + token];
                float32x4_t term;
                if constexpr (type == WeightType::q4_0) {
                    term = vmulq_f32(d, vsubq_f32(product, vdupq_n_f32(8.0f * sum)));
                } else if constexpr (type == WeightType::q4_1) {
                    term = vaddq_f32(vmulq_f32(d, product), vmulq_n_f32(load_halves(panel + 2 * kPanel + 8 * quad), sum));
                } else {
                    term = vmulq_f32(d, product);
                }
                y[token][quad] = vaddq_f32(y[token][quad], vmulq_n_f32(term, rows.scales[place + token]));
            }
        }
    }
    for (int token = 0; token < tokens; ++token)
        for (int quad = 0; quad < kQuads; ++quad) vst1q_f32(out + token * kPanel + 4 * quad, y[token][quad]);
}

template <WeightType type>
void quantized_panel(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, int tokens, float *out) {
    constexpr int kGroup = 2;  // whose sums, without those instructions, fill half of the registers
    for (; tokens >= kGroup; tokens -= kGroup, first += kGroup, out += kGroup * kPanel) few<type, kGroup>(panel, blocks, rows, first, out);
    if (tokens > 0) few<type, 1>(panel, blocks, rows, first, out);
}

template <WeightType type, int tokens>
void few_floats(const std::uint8_t *panel, std::int64_t cols, const float *x, float *out) {
    float32x4_t y[tokens][kQuads];
    for (int token = 0; token < tokens; ++token)
        for (float32x4_t &quad : y[token]) quad = vdupq_n_f32(0.0f);
    for (std::int64_t column = 0; column < cols; ++column)
        for (int quad = 0; quad < kQuads; ++quad) {
            const std::int64_t at = column * kPanel + 4 * quad;
            float32x4_t weights;
            if constexpr (type == WeightType::f32)
                weights = vreinterpretq_f32_u8(vld1q_u8(panel + 4 * at));
            else
                weights = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(panel + 2 * at)), 16));
            for (int token = 0; token < tokens; ++token) y[token][quad] = vfmaq_n_f32(y[token][quad], weights, x[token * cols + column]);
        }
    for (int token = 0; token < tokens; ++token)
        for (int quad = 0; quad < kQuads; ++quad) vst1q_f32(out + token * kPanel + 4 * quad, y[token][quad]);
}

template <WeightType type>
void float_panel(const std::uint8_t *panel, std::int64_t cols, const float *x, int tokens, float *out) {
    for (; tokens >= 4; tokens -= 4, x += 4 * cols, out += 4 * kPanel) few_floats<type, 4>(panel, cols, x, out);
    switch (tokens) {
        case 1: return few_floats<type, 1>(panel, cols, x, out);
        case 2: return few_floats<type, 2>(panel, cols, x, out);
        case 3: return few_floats<type, 3>(panel, cols, x, out);
        default: return;
    }
}

constexpr LinearPath kPath{
    quantized_panel<WeightType::q8_0>, quantized_panel<WeightType::q4_0>, quantized_panel<WeightType::q4_1>,
    float_panel<WeightType::f32>, float_panel<WeightType::bf16>, nullptr,
};

}  // namespace
}  // namespace radixrt
