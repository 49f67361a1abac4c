// The products on AVX2: eight rows of a panel in the lanes of a register, four columns in each lane.
#if defined(__x86_64__)
#include <cstring>
#include <immintrin.h>

#include "radixrt/linear.h"
#include "radixrt/linear_avx2.h"

namespace radixrt {

namespace {

// Tokens whose products are computed together: both halves' sums of four fill half of the registers.
constexpr int kGroup = 4;
constexpr int kPrefetchBytes = 2048;

__m256i four_columns(const std::int8_t *a) {
    std::int32_t bytes;
    std::memcpy(&bytes, a, sizeof(bytes));
    return _mm256_set1_epi32(bytes);
}

// Add a term to a sum where it is written: a compiler that orders sums itself collects the terms of a block first, and has no
// registers for them.
inline void add_now(__m256i &sum, __m256i term, bool words) {
    sum = words ? _mm256_add_epi16(sum, term) : _mm256_add_epi32(sum, term);
    asm("" : "+x"(sum));  // NOLINT(portability-no-assembler)
}

// Four columns of both halves of a panel, times those of some tokens (from ``a`` on, kBlock apart), added to the sums.
template <WeightType type, int tokens>
inline void add_columns(__m256i (&sums)[2][tokens], const __m256i (&weights)[2], const std::int8_t *a) {
    const __m256i magnitudes[2] = {_mm256_abs_epi8(weights[0]), _mm256_abs_epi8(weights[1])};
#pragma GCC unroll 4
    for (int token = 0; token < tokens; ++token) {
        const __m256i column = four_columns(a + token * kBlock);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            if constexpr (type == WeightType::q8_0) {
                // 128 * 127 * 2 fits 16 bits, twice that does not.
                const __m256i pairs = _mm256_maddubs_epi16(magnitudes[half], _mm256_sign_epi8(column, weights[half]));
                add_now(sums[half][token], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), false);
            } else {
                // 15 * 127 * 2 fits 16 bits eight times.
                add_now(sums[half][token], _mm256_maddubs_epi16(weights[half], column), true);
            }
        }
    }
}

// The sums of the products of one block of a panel with some tokens.
template <WeightType type, int tokens>
inline void dots(__m256i (&sums)[2][tokens], const std::uint8_t *numbers, const std::int8_t *a) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
        for (int token = 0; token < tokens; ++token) sums[half][token] = _mm256_setzero_si256();
    if constexpr (type == WeightType::q8_0) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) add_columns<type>(sums, {load_numbers(numbers + 64 * j), load_numbers(numbers + 64 * j + 32)}, a + 4 * j);
    } else {
        const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const __m256i both[2] = {load_numbers(numbers + 64 * j), load_numbers(numbers + 64 * j + 32)};
            add_columns<type>(sums, {_mm256_and_si256(both[0], low), _mm256_and_si256(both[1], low)}, a + 4 * j);
            const __m256i high[2] = {_mm256_srli_epi16(both[0], 4), _mm256_srli_epi16(both[1], 4)};
            add_columns<type>(sums, {_mm256_and_si256(high[0], low), _mm256_and_si256(high[1], low)}, a + kBlock / 2 + 4 * j);
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
            for (int token = 0; token < tokens; ++token) sums[half][token] = _mm256_madd_epi16(sums[half][token], _mm256_set1_epi16(1));
    }
}

// y = y + scale * (d * dot [+ m * sum of a]) for every block of a panel and some tokens.
template <WeightType type, int tokens>
void few(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, float *out) {
    constexpr int numbers_at = (type == WeightType::q4_1 ? 4 : 2) * kPanel;
    __m256 y[2][tokens];
    for (int half = 0; half < 2; ++half)
        for (int token = 0; token < tokens; ++token) y[half][token] = _mm256_setzero_ps();
    std::int64_t place = first;
    for (std::int64_t block = 0; block < blocks; ++block, panel += panel_block_bytes(type), place += rows.tokens) {
        // Panels follow each other in memory; far enough ahead to hide how long it takes.
        for (std::size_t line = 0; line < panel_block_bytes(type); line += 64)
            _mm_prefetch(reinterpret_cast<const char *>(panel) + kPrefetchBytes + line, tokens == 1 ? _MM_HINT_NTA : _MM_HINT_T0);
        __m256i sums[2][tokens];
        dots<type>(sums, panel + numbers_at, rows.numbers + place * kBlock);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m256 d = load_halves(panel + 2 * half * kHalf);
            const __m256 m = type == WeightType::q4_1 ? load_halves(panel + 2 * kPanel + 2 * half * kHalf) : _mm256_setzero_ps();
#pragma GCC unroll 4
            for (int token = 0; token < tokens; ++token) {
                const __m256 product = _mm256_cvtepi32_ps(sums[half][token]), sum = _mm256_broadcast_ss(rows.sums + place + token);
                __m256 term;
                if constexpr (type == WeightType::q4_0) {
                    term = _mm256_mul_ps(d, _mm256_sub_ps(product, _mm256_mul_ps(_mm256_set1_ps(8.0f), sum)));
                } else if constexpr (type == WeightType::q4_1) {
                    term = _mm256_add_ps(_mm256_mul_ps(d, product), _mm256_mul_ps(m, sum));
                } else {
                    term = _mm256_mul_ps(d, product);
                }
                y[half][token] = _mm256_add_ps(y[half][token], _mm256_mul_ps(term, _mm256_broadcast_ss(rows.scales + place + token)));
            }
        }
    }
    for (int half = 0; half < 2; ++half)
        for (int token = 0; token < tokens; ++token) _mm256_storeu_ps(out + token * kPanel + half * kHalf, y[half][token]);
}

template <WeightType type>
void quantized_panel(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, int tokens, float *out) {
    for (; tokens >= kGroup; tokens -= kGroup, first += kGroup, out += kGroup * kPanel) few<type, kGroup>(panel, blocks, rows, first, out);
    switch (tokens) {
        case 1: return few<type, 1>(panel, blocks, rows, first, out);
        case 2: return few<type, 2>(panel, blocks, rows, first, out);
        case 3: return few<type, 3>(panel, blocks, rows, first, out);
        default: return;
    }
}

template <WeightType type>
inline __m256 float_weights(const std::uint8_t *panel, std::int64_t column, int half) {
    const std::int64_t at = column * kPanel + half * kHalf;
    if constexpr (type == WeightType::f32) {
        return _mm256_loadu_ps(reinterpret_cast<const float *>(panel) + at);
    } else {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(panel + 2 * at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
}

template <WeightType type, int tokens>
void few_floats(const std::uint8_t *panel, std::int64_t cols, const float *x, float *out) {
    __m256 y[2][tokens];
    for (int half = 0; half < 2; ++half)
        for (int token = 0; token < tokens; ++token) y[half][token] = _mm256_setzero_ps();
    for (std::int64_t column = 0; column < cols; ++column) {
        const __m256 low = float_weights<type>(panel, column, 0), high = float_weights<type>(panel, column, 1);
        for (int token = 0; token < tokens; ++token) {
            const __m256 value = _mm256_broadcast_ss(x + token * cols + column);
            y[0][token] = _mm256_fmadd_ps(low, value, y[0][token]);
            y[1][token] = _mm256_fmadd_ps(high, value, y[1][token]);
        }
    }
    for (int half = 0; half < 2; ++half)
        for (int token = 0; token < tokens; ++token) _mm256_storeu_ps(out + token * kPanel + half * kHalf, y[half][token]);
}

template <WeightType type>
void float_panel(const std::uint8_t *panel, std::int64_t cols, const float *x, int tokens, float *out) {
    for (; tokens >= 6; tokens -= 6, x += 6 * cols, out += 6 * kPanel) few_floats<type, 6>(panel, cols, x, out);
    switch (tokens) {
        case 1: return few_floats<type, 1>(panel, cols, x, out);
        case 2: return few_floats<type, 2>(panel, cols, x, out);
        case 3: return few_floats<type, 3>(panel, cols, x, out);
        case 4: return few_floats<type, 4>(panel, cols, x, out);
        case 5: return few_floats<type, 5>(panel, cols, x, out);
        default: return;
    }
}

}  // namespace

const LinearPath kLinearAvx2{
    quantized_panel<WeightType::q8_0>, quantized_panel<WeightType::q4_0>, quantized_panel<WeightType::q4_1>,
    float_panel<WeightType::f32>, float_panel<WeightType::bf16>, &kSpreadAvx2,
};

}  // namespace radixrt
#endif
