// The products on AVX-512 with VNNI: the sixteen rows of a panel in the lanes of a register, four columns in each lane.
#if defined(__x86_64__)
#include <cstring>
#include <immintrin.h>

#include "radixrt/linear.h"

namespace radixrt {

namespace {

__m512 load_halves(const std::uint8_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))); }

__m512i four_columns(const std::int8_t *a) {
    std::int32_t bytes;
    std::memcpy(&bytes, a, sizeof(bytes));
    return _mm512_set1_epi32(bytes);
}

struct Weights {
    __m512i columns[8];
};

// Numbers as unsigned bytes: those of q8_0 lie 128 higher than they are.
template <WeightType type>
inline Weights load_weights(const std::uint8_t *numbers) {
    Weights weights;
    if constexpr (type == WeightType::q8_0) {
        const __m512i high = _mm512_set1_epi8(static_cast<char>(0x80));
        for (int j = 0; j < 8; ++j) weights.columns[j] = _mm512_xor_si512(_mm512_loadu_si512(numbers + 64 * j), high);
    } else {
        const __m512i low = _mm512_set1_epi8(15);
        for (int j = 0; j < 4; ++j) {
            const __m512i both = _mm512_loadu_si512(numbers + 64 * j);
            weights.columns[j] = _mm512_and_si512(both, low);
            weights.columns[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    }
    return weights;
}

template <WeightType type>
inline __m512 add_block(__m512 y, const Weights &weights, __m512 d, __m512 m, const QuantizedRows &rows, std::int64_t place) {
    const std::int8_t *a = rows.numbers + place * kBlock;
    const float sum = rows.sums[place];
    __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
    if constexpr (type == WeightType::q8_0) odd = _mm512_set1_epi32(-128 * static_cast<std::int32_t>(sum));
    for (int j = 0; j < 8; j += 2) {
        even = _mm512_dpbusd_epi32(even, weights.columns[j], four_columns(a + 4 * j));
        odd = _mm512_dpbusd_epi32(odd, weights.columns[j + 1], four_columns(a + 4 * j + 4));
    }
    const __m512 product = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
    __m512 term;
    if constexpr (type == WeightType::q4_0) {
        term = _mm512_mul_ps(d, _mm512_sub_ps(product, _mm512_set1_ps(8.0f * sum)));
    } else if constexpr (type == WeightType::q4_1) {
        term = _mm512_add_ps(_mm512_mul_ps(d, product), _mm512_mul_ps(m, _mm512_set1_ps(sum)));
    } else {
        term = _mm512_mul_ps(d, product);
    }
    return _mm512_add_ps(y, _mm512_mul_ps(term, _mm512_set1_ps(rows.scales[place])));
}

template <WeightType type>
inline __m512 offsets(const std::uint8_t *block) {
    return type == WeightType::q4_1 ? load_halves(block + 2 * kPanel) : _mm512_setzero_ps();
}

constexpr int numbers_at(WeightType type) { return (type == WeightType::q4_1 ? 4 : 2) * kPanel; }

template <WeightType type, int tokens>
void few(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, float *out) {
    __m512 y[tokens];
    for (int token = 0; token < tokens; ++token) y[token] = _mm512_setzero_ps();
    for (std::int64_t block = 0; block < blocks; ++block, panel += panel_block_bytes(type)) {
        const __m512 d = load_halves(panel), m = offsets<type>(panel);
        const Weights weights = load_weights<type>(panel + numbers_at(type));
        for (int token = 0; token < tokens; ++token)
            y[token] = add_block<type>(y[token], weights, d, m, rows, block * rows.tokens + first + token);
    }
    for (int token = 0; token < tokens; ++token) _mm512_storeu_ps(out + token * kPanel, y[token]);
}

template <WeightType type>
void quantized_panel(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, int tokens, float *out) {
    for (; tokens >= 8; tokens -= 8, first += 8, out += 8 * kPanel) few<type, 8>(panel, blocks, rows, first, out);
    if (tokens >= 4) {
        few<type, 4>(panel, blocks, rows, first, out);
        tokens -= 4, first += 4, out += 4 * kPanel;
    }
    switch (tokens) {
        case 1: return few<type, 1>(panel, blocks, rows, first, out);
        case 2: return few<type, 2>(panel, blocks, rows, first, out);
        case 3: return few<type, 3>(panel, blocks, rows, first, out);
        default: return;
    }
}

template <WeightType type, int tokens>
void few_floats(const std::uint8_t *panel, std::int64_t cols, const float *x, float *out) {
    __m512 y[tokens];
    for (int token = 0; token < tokens; ++token) y[token] = _mm512_setzero_ps();
    for (std::int64_t column = 0; column < cols; ++column) {
        __m512 weights;
        if constexpr (type == WeightType::f32) {
            weights = _mm512_loadu_ps(panel + 4 * column * kPanel);
        } else {
            const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(panel + 2 * column * kPanel));
            weights = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
        }
        for (int token = 0; token < tokens; ++token) y[token] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[token * cols + column]), y[token]);
    }
    for (int token = 0; token < tokens; ++token) _mm512_storeu_ps(out + token * kPanel, y[token]);
}

template <WeightType type>
void float_panel(const std::uint8_t *panel, std::int64_t cols, const float *x, int tokens, float *out) {
    for (; tokens >= 8; tokens -= 8, x += 8 * cols, out += 8 * kPanel) few_floats<type, 8>(panel, cols, x, out);
    if (tokens >= 4) {
        few_floats<type, 4>(panel, cols, x, out);
        tokens -= 4, x += 4 * cols, out += 4 * kPanel;
    }
    switch (tokens) {
        case 1: return few_floats<type, 1>(panel, cols, x, out);
        case 2: return few_floats<type, 2>(panel, cols, x, out);
        case 3: return few_floats<type, 3>(panel, cols, x, out);
        default: return;
    }
}

}  // namespace

const LinearPath kLinearAvx512{
    quantized_panel<WeightType::q8_0>, quantized_panel<WeightType::q4_0>, quantized_panel<WeightType::q4_1>,
    float_panel<WeightType::f32>, float_panel<WeightType::bf16>, nullptr,
};

}  // namespace radixrt
#endif
