// Eight lanes of AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include "radixrt/simd.h"

namespace radixrt {
namespace {

struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kManyRows = 6, kColumnsOfMany = 2, kColumnsOfFew = 4, kFewRows = 3;
    static constexpr bool kStages = true;  // see softmax_stages.h
    using F = __m256;

    static F zero() { return _mm256_setzero_ps(); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F broadcast(const float *p) { return _mm256_broadcast_ss(p); }
    static F load(const float *p) { return _mm256_loadu_ps(p); }
    static void store(float *p, F x) { _mm256_storeu_ps(p, x); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    // The second where one is NaN.
    static F max(F a, F b) { return _mm256_max_ps(a, b); }

    // Bit i: lane i of a is at least that of b.
    static unsigned at_least(F a, F b) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ))); }
    // a, but the NaN of x where that has one.
    static F keep_nan(F a, F x) { return _mm256_blendv_ps(a, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

    static F load_as(const float *p) { return load(p); }
    static F load_as(const Bf16 *p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)), none = _mm_setzero_si128();
        return _mm256_castsi256_ps(_mm256_set_m128i(_mm_unpackhi_epi16(none, bits), _mm_unpacklo_epi16(none, bits)));
    }
    static F load_as(const F16 *p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
    static F load_as(const std::int8_t *p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    // Words that hold two bf16 each, as floats.
    static F first_of_pairs(F words) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words), 16)); }
    static F second_of_pairs(F words) {
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(words), _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
    }

    // x as an integer, rounded towards 0: -2^31 where it is NaN or below that.  None is 2^31 or more.
    static F integer(F x) { return _mm256_castsi256_ps(_mm256_cvttps_epi32(x)); }
    // Half of an integer, rounded down.
    static F halved(F bits) { return _mm256_castsi256_ps(_mm256_srai_epi32(_mm256_castps_si256(bits), 1)); }
    // 1 + f: the low 23 bits of an integer as a fraction f.
    static F fraction(F bits) { return _mm256_or_ps(_mm256_and_ps(bits, set1(float_of(0x7FFFFFu))), set1(1.0f)); }
    static F add_bits(F a, F b) { return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b))); }
    // Keeps the order of steps: a compiler would rather end one chain of them before it begins the next.
    static void here(F &x) { asm volatile("" : "+x"(x)); }  // NOLINT(portability-no-assembler,misc-const-correctness)

    static float reduce_max(F x) {
        __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        y = _mm_max_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
    }
    // Sixteen lanes, halved again and again: the order of every instruction set.
    static float reduce_add(const F (&x)[2]) {
        const F folded = add(x[0], x[1]);
        __m128 y = _mm_add_ps(_mm256_castps256_ps128(folded), _mm256_extractf128_ps(folded, 1));
        y = _mm_add_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
    }

    // acc + a1 b1 + a0 b0 of pairs of bf16: each product and sum rounded once.
    static F dot_pairs(F acc, F a, F b) {
        return fma(first_of_pairs(a), first_of_pairs(b), fma(second_of_pairs(a), second_of_pairs(b), acc));
    }
    // Floats that bf16 holds exactly, as words: low half the first, high half the second.
    static F join_pairs(F first, F second) {
        const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(first), 16);
        return _mm256_or_ps(_mm256_castsi256_ps(low), second_of_pairs(second));
    }
    // 2 kLanes consecutive floats rounded to bf16, as words.
    static F round_pairs(const float *p) {
        std::uint32_t words[kLanes];
        for (int i = 0; i < kLanes; ++i) words[i] = bf16_of(p[2 * i]) | std::uint32_t{bf16_of(p[2 * i + 1])} << 16;
        return load(reinterpret_cast<const float *>(words));
    }

    static void transpose(F (&x)[8]) {
        F y[8];
        for (int i = 0; i < 4; ++i) {
            y[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
            y[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
        }
        F z[8];
        for (int half = 0; half < 2; ++half) {
            const F *in = y + 4 * half;
            F *out = z + 4 * half;
            out[0] = _mm256_shuffle_ps(in[0], in[2], 0x44);
            out[1] = _mm256_shuffle_ps(in[0], in[2], 0xEE);
            out[2] = _mm256_shuffle_ps(in[1], in[3], 0x44);
            out[3] = _mm256_shuffle_ps(in[1], in[3], 0xEE);
        }
        for (int i = 0; i < 4; ++i) {
            x[i] = _mm256_permute2f128_ps(z[i], z[4 + i], 0x20);
            x[4 + i] = _mm256_permute2f128_ps(z[i], z[4 + i], 0x31);
        }
    }
};

}  // namespace
}  // namespace radixrt
