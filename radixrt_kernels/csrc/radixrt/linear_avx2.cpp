// The products on AVX2: eight rows of a panel in the lanes of a register, four columns in each lane.
#if defined(__x86_64__)
#include <cstring>
#include <immintrin.h>

#include "radixrt/linear.h"

namespace radixrt {

namespace {

constexpr int kHalf = 8;
// Tokens whose products are computed together.
constexpr int kGroup = 4;
constexpr int kPrefetchBytes = 2048;

__m256 load_halves(const std::uint8_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))); }

__m256i four_columns(const std::int8_t *a) {
    std::int32_t bytes;
    std::memcpy(&bytes, a, sizeof(bytes));
    return _mm256_set1_epi32(bytes);
}

// The numbers of one block for eight rows: four columns in each of eight registers.
struct Weights {
    __m256i columns[8];
};

template <WeightType type>
inline Weights load_weights(const std::uint8_t *numbers) {
    Weights weights;
    if constexpr (type == WeightType::q8_0) {
        for (int j = 0; j < 8; ++j) weights.columns[j] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers + 64 * j));
    } else {
        const __m256i low = _mm256_set1_epi8(15);
        for (int j = 0; j < 4; ++j) {
            const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers + 64 * j));
            weights.columns[j] = _mm256_and_si256(both, low);
            weights.columns[j + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
    }
    return weights;
}

// The sums of the products of one block with some tokens.  Column by column over all tokens, not token by token: the chains of
// additions are long, and a scheduler holds less than one of them.
template <WeightType type, int tokens>
inline void dots(const Weights &weights, const std::int8_t *a, __m256i *sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int token = 0; token < tokens; ++token) sums[token] = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
        for (int token = 0; token < tokens; ++token) {
            const __m256i column = four_columns(a + token * kBlock + 4 * j);
            if constexpr (type == WeightType::q8_0) {
                // 128 * 127 * 2 fits 16 bits, twice that does not.
                const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights.columns[j]), _mm256_sign_epi8(column, weights.columns[j]));
                sums[token] = _mm256_add_epi32(sums[token], _mm256_madd_epi16(pairs, ones));
            } else {
                // 15 * 127 * 2 fits 16 bits eight times.
                sums[token] = _mm256_add_epi16(sums[token], _mm256_maddubs_epi16(weights.columns[j], column));
            }
        }
    }
    if constexpr (type != WeightType::q8_0)
        for (int token = 0; token < tokens; ++token) sums[token] = _mm256_madd_epi16(sums[token], ones);
}

// y = y + scale * (d * dot [+ m * sum of a]) for one block and some tokens.
template <WeightType type, int tokens>
inline void add_block(__m256 *y, const Weights &weights, __m256 d, __m256 m, const QuantizedRows &rows, std::int64_t place) {
    __m256i sums[tokens];
    dots<type, tokens>(weights, rows.numbers + place * kBlock, sums);
    for (int token = 0; token < tokens; ++token) {
        const __m256 product = _mm256_cvtepi32_ps(sums[token]);
        __m256 term;
        if constexpr (type == WeightType::q4_0) {
            term = _mm256_mul_ps(d, _mm256_sub_ps(product, _mm256_set1_ps(8.0f * rows.sums[place + token])));
        } else if constexpr (type == WeightType::q4_1) {
            term = _mm256_add_ps(_mm256_mul_ps(d, product), _mm256_mul_ps(m, _mm256_broadcast_ss(rows.sums + place + token)));
        } else {
            term = _mm256_mul_ps(d, product);
        }
        y[token] = _mm256_add_ps(y[token], _mm256_mul_ps(term, _mm256_broadcast_ss(rows.scales + place + token)));
    }
}

template <WeightType type>
inline __m256 offsets(const std::uint8_t *block, int row) {
    return type == WeightType::q4_1 ? load_halves(block + 2 * kPanel + 2 * row) : _mm256_setzero_ps();
}

constexpr int numbers_at(WeightType type) { return (type == WeightType::q4_1 ? 4 : 2) * kPanel; }

// Few tokens: the sums stay in registers.
template <WeightType type, int tokens>
void few(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, float *out) {
    __m256 y[2][tokens];
    for (int half = 0; half < 2; ++half)
        for (int token = 0; token < tokens; ++token) y[half][token] = _mm256_setzero_ps();
    for (std::int64_t block = 0; block < blocks; ++block, panel += panel_block_bytes(type)) {
        // Panels follow each other in memory; far enough ahead to hide how long it takes.
        for (std::size_t line = 0; line < panel_block_bytes(type); line += 64)
            _mm_prefetch(reinterpret_cast<const char *>(panel) + kPrefetchBytes + line, _MM_HINT_T0);
        for (int half = 0; half < 2; ++half) {
            const int row = half * kHalf;
            const __m256 d = load_halves(panel + 2 * row), m = offsets<type>(panel, row);
            const Weights weights = load_weights<type>(panel + numbers_at(type) + 4 * row);
            add_block<type, tokens>(y[half], weights, d, m, rows, block * rows.tokens + first);
        }
    }
    for (int half = 0; half < 2; ++half)
        for (int token = 0; token < tokens; ++token) _mm256_storeu_ps(out + token * kPanel + half * kHalf, y[half][token]);
}

template <WeightType type, int tokens>
inline void add_to_memory(float *out, const Weights &weights, __m256 d, __m256 m, const QuantizedRows &rows, std::int64_t place) {
    __m256 y[tokens];
    for (int token = 0; token < tokens; ++token) y[token] = _mm256_loadu_ps(out + token * kPanel);
    add_block<type, tokens>(y, weights, d, m, rows, place);
    for (int token = 0; token < tokens; ++token) _mm256_storeu_ps(out + token * kPanel, y[token]);
}

template <WeightType type>
void quantized_panel(const std::uint8_t *panel, std::int64_t blocks, const QuantizedRows &rows, std::int64_t first, int tokens, float *out) {
    switch (tokens) {
        case 1: return few<type, 1>(panel, blocks, rows, first, out);
        case 2: return few<type, 2>(panel, blocks, rows, first, out);
        case 3: return few<type, 3>(panel, blocks, rows, first, out);
        default: break;
    }
    std::memset(out, 0, sizeof(float) * kPanel * static_cast<std::size_t>(tokens));
    for (std::int64_t block = 0; block < blocks; ++block, panel += panel_block_bytes(type)) {
        for (int half = 0; half < 2; ++half) {
            const int row = half * kHalf;
            const __m256 d = load_halves(panel + 2 * row), m = offsets<type>(panel, row);
            const Weights weights = load_weights<type>(panel + numbers_at(type) + 4 * row);
            float *y = out + row;
            std::int64_t place = block * rows.tokens + first;
            int token = 0;
            for (; token + kGroup <= tokens; token += kGroup, y += kGroup * kPanel, place += kGroup)
                add_to_memory<type, kGroup>(y, weights, d, m, rows, place);
            for (; token < tokens; ++token, y += kPanel, ++place) add_to_memory<type, 1>(y, weights, d, m, rows, place);
        }
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
    float_panel<WeightType::f32>, float_panel<WeightType::bf16>,
};

}  // namespace radixrt
#endif
