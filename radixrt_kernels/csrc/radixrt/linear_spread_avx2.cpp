// Products of eight tokens with 4-bit weights on AVX2: eight rows of a panel in the lanes of a register, a register of sums a token.
//
// The limit is the one pipe that multiplies bytes, and a processor that keeps few waiting instructions in view.  So the columns of a
// token come from memory in the instruction that multiplies them, and the order of instructions is written down: while the bytes of a
// block are multiplied, the block before it is scaled and added to y, a token in the time of eight products, and nothing stands right
// behind what it waits for.  The sums of a block are widened together, since each change between the two kinds of products costs a
// slot of that pipe.
#if defined(__x86_64__)
#include <cstring>
#include <immintrin.h>

#include "radixrt/linear.h"
#include "radixrt/linear_avx2.h"

namespace radixrt {

namespace {

// Products of a block: eight times four columns of eight tokens.
constexpr int kSteps = 8 * kSpreadTokens;
// Products between one and its addition.
constexpr int kLag = 3;

// Keep the order in which things are written: what is computed here is not moved.
inline void here(__m256i &value) { asm volatile("" : "+x"(value)); }  // NOLINT(portability-no-assembler,misc-const-correctness)
inline void here(__m256 &value) { asm volatile("" : "+x"(value)); }   // NOLINT(portability-no-assembler,misc-const-correctness)

void spread(const QuantizedRows &rows, std::int64_t first, std::int64_t block, int blocks, float factor, SpreadRows &out) {
    for (int b = 0; b < blocks; ++b) {
        for (int token = 0; token < kSpreadTokens; ++token) {
            const std::int64_t place = (block + b) * rows.tokens + first + token;
            const std::int8_t *a = rows.numbers + place * kBlock;
            for (int j = 0; j < 8; ++j) {
                std::int32_t bytes;
                // In the order of the weights' halves of bytes.
                std::memcpy(&bytes, a + j / 2 * 4 + j % 2 * (kBlock / 2), sizeof(bytes));
                _mm256_store_si256(reinterpret_cast<__m256i *>(out.numbers[b][j][token]), _mm256_set1_epi32(bytes));
            }
            _mm256_store_ps(out.sums[b][token], _mm256_set1_ps(factor * rows.sums[place]));
            _mm256_store_ps(out.scales[b][token], _mm256_set1_ps(rows.scales[place]));
        }
    }
}

// Dot products of eight tokens with half a panel's block.
using Dots = float[kSpreadTokens][kHalf];

// Where those that wait to be scaled and added belong.  Passed by value: what lies beside the dots would be read again for each token.
struct Waiting {
    const std::uint8_t *halves;  // d, and m two rows of halves further on
    const float *sums, *scales;  // the tokens', each in all lanes of a register
    float *y;
};

// One of the parts of what adds a token's dot products to y: y = y + s * (d * dot [+ m * sum]), or s * (d * (dot - sum)).
constexpr int kParts = 4;
template <WeightType type>
inline void fold(int part, int token, const Dots &dots, Waiting waiting, __m256 d, __m256 m, __m256 &term) {
    const float *sums = waiting.sums + token * kHalf, *scales = waiting.scales + token * kHalf;
    float *y = waiting.y + token * kPanel;
    switch (part) {
        case 0:
            term = _mm256_load_ps(dots[token]);
            term = type == WeightType::q4_1 ? _mm256_mul_ps(term, d) : _mm256_sub_ps(term, _mm256_load_ps(sums));
            return here(term);
        case 1:
            // Fused without another rounding: m has 11 bits and a sum 12, so that their product is exact.
            term = type == WeightType::q4_1 ? _mm256_fmadd_ps(m, _mm256_load_ps(sums), term) : _mm256_mul_ps(term, d);
            return here(term);
        case 2: term = _mm256_mul_ps(term, _mm256_load_ps(scales)); return here(term);
        default:
            term = _mm256_add_ps(term, _mm256_loadu_ps(y));
            here(term);
            return _mm256_storeu_ps(y, term);
    }
}

// The dot products of half a panel's block, folding those that wait meanwhile, for which they wait then.
template <WeightType type>
inline void block_dots(const std::uint8_t *numbers, const __m256i *low, const __m256i &ones, const std::int8_t *columns, Dots &dots, Waiting waiting) {
    // Of the eight products of a token's turn, those after which its parts stand.
    constexpr int kPartAfter[kParts] = {0, 3, 5, 7};
    __m256 d = load_halves(waiting.halves), m = d;
    here(d);
    if constexpr (type == WeightType::q4_1) {
        m = load_halves(waiting.halves + 2 * kPanel);
        here(m);
    }
    __m256 term = d;
    __m256i sums[kSpreadTokens], products[kLag + 1], weights = ones;
#pragma GCC unroll 80
    for (int step = 0; step < kSteps + kLag; ++step) {
        const int j = step / kSpreadTokens, token = step % kSpreadTokens;
        if (step < kSteps) {
            if (token == 0) {
                weights = load_numbers(numbers + 4 * kPanel * (j / 2));
                if (j % 2) weights = _mm256_srli_epi16(weights, 4);
                weights = _mm256_and_si256(weights, *low);
                here(weights);
            }
            // 15 * 127 * 2 fits 16 bits eight times.
            __m256i &product = j == 0 ? sums[token] : products[step % (kLag + 1)];
            product = _mm256_maddubs_epi16(weights, load_numbers(columns + kBlock * step));
            here(product);
        }
        if (step >= kSpreadTokens + kLag) {
            __m256i &sum = sums[(step - kLag) % kSpreadTokens];
            sum = _mm256_add_epi16(sum, products[(step - kLag) % (kLag + 1)]);
            here(sum);
        }
        if (step < kSteps)
            for (int part = 0; part < kParts; ++part)
                if (token == kPartAfter[part]) fold<type>(part, j, dots, waiting, d, m, term);
    }
#pragma GCC unroll 8
    for (__m256i &sum : sums) {
        sum = _mm256_madd_epi16(sum, ones);
        here(sum);
    }
#pragma GCC unroll 8
    for (int token = 0; token < kSpreadTokens; ++token) {
        __m256 dot = _mm256_cvtepi32_ps(sums[token]);
        here(dot);
        _mm256_store_ps(dots[token], dot);
        asm volatile("" : "+m"(dots[token]));  // NOLINT(portability-no-assembler)
    }
}

template <WeightType type>
void panels(const std::uint8_t *panel, std::size_t panel_bytes, int count, int blocks, const SpreadRows &rows, float *y) {
    constexpr int numbers_at = (type == WeightType::q4_1 ? 4 : 2) * kPanel;
    // From memory, since the registers are full: a pointer that the compiler does not see through.
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), *low_at = &low;
    asm volatile("" : "+r"(low_at) : : "memory");  // NOLINT(portability-no-assembler)
    // Nothing waits at first: zeros, with scales of zero, are added to what nobody reads.
    alignas(32) float nobody[kSpreadTokens * kPanel] = {};
    const std::uint8_t nothing[4 * kPanel] = {};
    alignas(32) Dots dots = {};
    Waiting waiting{nothing, rows.sums[0][0], rows.scales[0][0], nobody};
    for (; count > 0; --count, panel += panel_bytes, y += kSpreadTokens * kPanel) {
        for (int half = 0; half < 2; ++half) {
            const std::uint8_t *from = panel;
            for (int block = 0; block < blocks; ++block, from += panel_block_bytes(type)) {
                block_dots<type>(from + numbers_at + 4 * kHalf * half, low_at, ones, rows.numbers[block][0][0], dots, waiting);
                waiting = {from + 2 * kHalf * half, rows.sums[block][0], rows.scales[block][0], y + kHalf * half};
            }
        }
    }
    const __m256 d = load_halves(waiting.halves), m = type == WeightType::q4_1 ? load_halves(waiting.halves + 2 * kPanel) : d;
    __m256 term = d;
    for (int token = 0; token < kSpreadTokens; ++token)
        for (int part = 0; part < kParts; ++part) fold<type>(part, token, dots, waiting, d, m, term);
}

}  // namespace

const SpreadPath kSpreadAvx2{spread, panels<WeightType::q4_0>, panels<WeightType::q4_1>};

}  // namespace radixrt
#endif
