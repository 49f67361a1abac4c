// Sixteen lanes of AVX-512 with BF16.
#pragma once

#include <immintrin.h>

#include "radixrt/simd.h"

namespace radixrt {
namespace {

struct Simd {
    static constexpr int kLanes = 16;
    static constexpr int kManyRows = 6, kColumnsOfMany = 4, kColumnsOfFew = 4, kFewRows = 3;
    static constexpr bool kStages = false;  // see softmax_stages.h
    using F = __m512;

    static F zero() { return _mm512_setzero_ps(); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    // Moved as an integer: a pair of bf16 may look like a signalling NaN.
    static F broadcast(const float *p) {
        int bits;
        std::memcpy(&bits, p, sizeof bits);
        return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
    }
    static F load(const float *p) { return _mm512_loadu_ps(p); }
    static void store(float *p, F x) { _mm512_storeu_ps(p, x); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    // The second where one is NaN.
    static F max(F a, F b) { return _mm512_max_ps(a, b); }

    // Bit i: lane i of a is at least that of b.
    static unsigned at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
    // a, but the NaN of x where that has one.
    static F keep_nan(F a, F x) { return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x); }

    static F load_as(const float *p) { return load(p); }
    static F load_as(const Bf16 *p) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    static F load_as(const F16 *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
    static F load_as(const std::int8_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static F first_of_pairs(F words) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(words), 16)); }
    static F second_of_pairs(F words) {
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(words), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
    }

    // x as an integer, rounded towards 0: -2^31 where it is NaN or below that.  None is 2^31 or more.
    static F integer(F x) { return _mm512_castsi512_ps(_mm512_cvttps_epi32(x)); }
    // Half of an integer, rounded down.
    static F halved(F bits) { return _mm512_castsi512_ps(_mm512_srai_epi32(_mm512_castps_si512(bits), 1)); }
    // 1 + f: the low 23 bits of an integer as a fraction f.
    static F fraction(F bits) {
        const __m512i low = _mm512_and_si512(_mm512_castps_si512(bits), _mm512_set1_epi32(0x7FFFFF));
        return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(set1(1.0f))));
    }
    static F add_bits(F a, F b) { return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b))); }
    static void here(const F &) {}

    static float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
    // Sixteen lanes, halved again and again: the order of every instruction set.
    static float reduce_add(const F (&x)[1]) {
        const __m256 folded = _mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1));
        __m128 y = _mm_add_ps(_mm256_castps256_ps128(folded), _mm256_extractf128_ps(folded, 1));
        y = _mm_add_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
    }

    static void transpose(F (&x)[16]) {
        F y[16], z[16];
        for (int i = 0; i < 8; ++i) {
            y[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
            y[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
        }
        // z[4 q + i], 128-bit lane b: column 4 b + i of rows 4 q .. 4 q + 3.
        for (int q = 0; q < 4; ++q) {
            const F *in = y + 4 * q;
            F *out = z + 4 * q;
            out[0] = _mm512_shuffle_ps(in[0], in[2], 0x44);
            out[1] = _mm512_shuffle_ps(in[0], in[2], 0xEE);
            out[2] = _mm512_shuffle_ps(in[1], in[3], 0x44);
            out[3] = _mm512_shuffle_ps(in[1], in[3], 0xEE);
        }
        for (int i = 0; i < 4; ++i) {
            const F even_low = _mm512_shuffle_f32x4(z[i], z[4 + i], 0x88), odd_low = _mm512_shuffle_f32x4(z[i], z[4 + i], 0xDD);
            const F even_high = _mm512_shuffle_f32x4(z[8 + i], z[12 + i], 0x88), odd_high = _mm512_shuffle_f32x4(z[8 + i], z[12 + i], 0xDD);
            x[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
            x[4 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
            x[8 + i] = _mm512_shuffle_f32x4(even_low, even_high, 0xDD);
            x[12 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD);
        }
    }

    // acc + a1 b1 + a0 b0 of pairs of bf16: each product and sum rounded once.
    static F dot_pairs(F acc, F a, F b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
    // Floats that bf16 holds exactly, as words: low half the first, high half the second.
    static F join_pairs(F first, F second) {
        const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
        const __m512i high = _mm512_and_si512(_mm512_castps_si512(second), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
        return _mm512_castsi512_ps(_mm512_or_si512(low, high));
    }
    // 2 kLanes consecutive floats rounded to bf16, as words.
    static F round_pairs(const float *p) { return (F)_mm512_cvtne2ps_pbh(load(p + kLanes), load(p)); }
};

}  // namespace
}  // namespace radixrt
