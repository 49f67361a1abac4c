// The AVX-512 intrinsics that the kernels use, in plain vectors by their public definition, so that those kernels run on any x86-64
// machine with AVX2.  scripts/test_native includes it first of all in *_avx512.cpp, and in cpu.cpp, which then finds AVX-512.
//
// It shows what the kernels compute, not what a compiler makes of the intrinsics, nor how long that takes.
#pragma once

#if defined(__AVX512F__)
#error "emulation is for files compiled without AVX-512"
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace emulated_avx512 {

using Floats = __m512;
using Integers = __m512i;
using Words = std::int32_t __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(64)));
using Bytes = std::uint8_t __attribute__((vector_size(64)));
using SignedBytes = std::int8_t __attribute__((vector_size(64)));
using UnsignedWords = std::uint32_t __attribute__((vector_size(64)));

// What is smaller than the smallest normal number counts as 0 of its sign.
inline float flushed(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return (bits & 0x7F800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : value;
}

inline std::uint16_t bf16_of(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(flushed(value));
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline Floats loadu_ps(const void *from) {
    Floats out;
    std::memcpy(&out, from, sizeof out);
    return out;
}
inline Integers loadu_si512(const void *from) {
    Integers out;
    std::memcpy(&out, from, sizeof out);
    return out;
}
inline void storeu_ps(void *to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline Floats setzero_ps() { return Floats{}; }
inline Integers setzero_si512() { return Integers{}; }
inline Floats set1_ps(float x) { return x - Floats{}; }  // x - 0 is x also where that is -0
inline Integers set1_epi32(int x) { return (Integers)(x + Words{}); }
inline Integers set1_epi8(char x) { return (Integers)(static_cast<std::int8_t>(x) + SignedBytes{}); }

inline Integers castps_si512(Floats x) { return (Integers)x; }
inline Floats castsi512_ps(Integers x) { return (Floats)x; }
inline __m256 castps512_ps256(Floats x) {
    __m256 low;
    std::memcpy(&low, &x, sizeof low);
    return low;
}
inline __m256 extractf32x8_ps(Floats x, int half) {
    __m256 out;
    std::memcpy(&out, reinterpret_cast<const char *>(&x) + 32 * (half & 1), sizeof out);
    return out;
}

inline Floats add_ps(Floats a, Floats b) { return a + b; }
inline Floats sub_ps(Floats a, Floats b) { return a - b; }
inline Floats mul_ps(Floats a, Floats b) { return a * b; }
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
    for (int i = 0; i < 16; ++i) a[i] = std::fma(a[i], b[i], c[i]);
    return a;
}
// The second where one is NaN, or both are zeros.
inline Floats max_ps(Floats a, Floats b) {
    for (int i = 0; i < 16; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
inline float reduce_max_ps(Floats x) {
    float best = x[0];
    for (int i = 1; i < 16; ++i) best = best > x[i] ? best : x[i];
    return best;
}

inline __mmask16 cmp_ps_mask(Floats a, Floats b, int predicate) {
    unsigned mask = 0;
    for (int i = 0; i < 16; ++i) {
        const bool holds = predicate == _CMP_GE_OQ ? a[i] >= b[i] : a[i] != a[i] || b[i] != b[i];
        mask |= static_cast<unsigned>(holds) << i;
    }
    if (predicate != _CMP_GE_OQ && predicate != _CMP_UNORD_Q) __builtin_trap();
    return static_cast<__mmask16>(mask);
}
inline Floats mask_mov_ps(Floats otherwise, __mmask16 mask, Floats x) {
    for (int i = 0; i < 16; ++i)
        if ((mask >> i & 1) != 0) otherwise[i] = x[i];
    return otherwise;
}

inline Integers and_si512(Integers a, Integers b) { return a & b; }
inline Integers or_si512(Integers a, Integers b) { return a | b; }
inline Integers xor_si512(Integers a, Integers b) { return a ^ b; }
inline Integers add_epi32(Integers a, Integers b) { return (Integers)((UnsignedWords)a + (UnsignedWords)b); }
inline Integers sub_epi32(Integers a, Integers b) { return (Integers)((UnsignedWords)a - (UnsignedWords)b); }
inline Integers slli_epi32(Integers x, unsigned count) { return (Integers)((UnsignedWords)x << count); }
inline Integers srli_epi32(Integers x, unsigned count) { return (Integers)((UnsignedWords)x >> count); }
inline Integers srai_epi32(Integers x, unsigned count) { return (Integers)((Words)x >> static_cast<std::int32_t>(count)); }
inline Integers srli_epi16(Integers x, unsigned count) { return (Integers)((Halves)x >> static_cast<std::uint16_t>(count)); }

inline Floats cvtepi32_ps(Integers x) { return __builtin_convertvector((Words)x, Floats); }
// The least integer where there is none.
inline Integers cvttps_epi32(Floats x) {
    Words out{};
    for (int i = 0; i < 16; ++i) out[i] = x[i] >= -0x1p31f && x[i] < 0x1p31f ? static_cast<std::int32_t>(x[i]) : INT32_MIN;
    return (Integers)out;
}
inline Integers cvtepu16_epi32(__m256i x) {
    using Half = std::uint16_t __attribute__((vector_size(32)));
    return (Integers)__builtin_convertvector((Half)x, Words);
}
inline Integers cvtepi8_epi32(__m128i x) {
    using Quarter = std::int8_t __attribute__((vector_size(16)));
    return (Integers)__builtin_convertvector((Quarter)x, Words);
}
inline Floats cvtph_ps(__m256i x) {
    const __m256 halves[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
    return loadu_ps(halves);
}

// Within each quarter: two of a, two of b, or the lower or the upper halves of both in turn.
inline Floats shuffle_ps(Floats a, Floats b, unsigned order) {
    Floats out{};
    for (int i = 0; i < 16; ++i) {
        const unsigned from = i / 4 * 4 + (order >> 2 * (i % 4) & 3);
        out[i] = i % 4 < 2 ? a[from] : b[from];
    }
    return out;
}
inline Floats unpacklo_ps(Floats a, Floats b) {
    Floats out{};
    for (int i = 0; i < 16; ++i) {
        const int from = i / 4 * 4 + i % 4 / 2;
        out[i] = i % 2 == 0 ? a[from] : b[from];
    }
    return out;
}
inline Floats unpackhi_ps(Floats a, Floats b) {
    Floats out{};
    for (int i = 0; i < 16; ++i) {
        const int from = i / 4 * 4 + 2 + i % 4 / 2;
        out[i] = i % 2 == 0 ? a[from] : b[from];
    }
    return out;
}
// Whole quarters: two of a, then two of b.
inline Floats shuffle_f32x4(Floats a, Floats b, unsigned order) {
    Floats out{};
    for (int i = 0; i < 16; ++i) {
        const unsigned from = (order >> 2 * (i / 4) & 3) * 4 + i % 4;
        out[i] = i < 8 ? a[from] : b[from];
    }
    return out;
}

// VPDPBUSD: four products of unsigned and signed bytes onto each word, which wraps.
inline Integers dpbusd_epi32(Integers sums, Integers a, Integers b) {
    auto out = (UnsignedWords)sums;
    const auto left = (Bytes)a;
    const auto right = (SignedBytes)b;
    for (int i = 0; i < 64; ++i) out[i / 4] += static_cast<std::uint32_t>(left[i] * right[i]);
    return (Integers)out;
}

// VDPBF16PS: the second of each pair, then the first, each multiplied and added in one rounding; what goes in and what comes out is
// flushed.
inline Floats dpbf16_ps(Floats sums, __m512bh a, __m512bh b) {
    const auto left = (UnsignedWords)a, right = (UnsignedWords)b;
    for (int i = 0; i < 16; ++i) {
        float sum = flushed(sums[i]);
        sum = flushed(std::fma(flushed(std::bit_cast<float>(left[i] & 0xFFFF0000u)), flushed(std::bit_cast<float>(right[i] & 0xFFFF0000u)), sum));
        sums[i] = flushed(std::fma(flushed(std::bit_cast<float>(left[i] << 16)), flushed(std::bit_cast<float>(right[i] << 16)), sum));
    }
    return sums;
}

// VCVTNE2PS2BF16: the second operand comes first.
inline __m512bh cvtne2ps_pbh(Floats a, Floats b) {
    Halves out{};
    for (int i = 0; i < 32; ++i) out[i] = bf16_of(i < 16 ? b[i] : a[i - 16]);
    return (__m512bh)out;
}

}  // namespace emulated_avx512

// The compiler's own are functions or, without optimisation, macros; neither may be called here.
#undef _mm512_cmp_ps_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_ps
#undef _mm512_slli_epi32
#undef _mm512_srai_epi32
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32
#undef _mm512_cvtph_ps
#define _mm512_add_epi32 emulated_avx512::add_epi32
#define _mm512_add_ps emulated_avx512::add_ps
#define _mm512_and_si512 emulated_avx512::and_si512
#define _mm512_castps512_ps256 emulated_avx512::castps512_ps256
#define _mm512_castps_si512 emulated_avx512::castps_si512
#define _mm512_castsi512_ps emulated_avx512::castsi512_ps
#define _mm512_cmp_ps_mask emulated_avx512::cmp_ps_mask
#define _mm512_cvtepi32_ps emulated_avx512::cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated_avx512::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated_avx512::cvtepu16_epi32
#define _mm512_cvtne2ps_pbh emulated_avx512::cvtne2ps_pbh
#define _mm512_cvtph_ps emulated_avx512::cvtph_ps
#define _mm512_cvttps_epi32 emulated_avx512::cvttps_epi32
#define _mm512_dpbf16_ps emulated_avx512::dpbf16_ps
#define _mm512_dpbusd_epi32 emulated_avx512::dpbusd_epi32
#define _mm512_extractf32x8_ps emulated_avx512::extractf32x8_ps
#define _mm512_fmadd_ps emulated_avx512::fmadd_ps
#define _mm512_loadu_ps emulated_avx512::loadu_ps
#define _mm512_loadu_si512 emulated_avx512::loadu_si512
#define _mm512_mask_mov_ps emulated_avx512::mask_mov_ps
#define _mm512_max_ps emulated_avx512::max_ps
#define _mm512_mul_ps emulated_avx512::mul_ps
#define _mm512_or_si512 emulated_avx512::or_si512
#define _mm512_reduce_max_ps emulated_avx512::reduce_max_ps
#define _mm512_set1_epi32 emulated_avx512::set1_epi32
#define _mm512_set1_epi8 emulated_avx512::set1_epi8
#define _mm512_set1_ps emulated_avx512::set1_ps
#define _mm512_setzero_ps emulated_avx512::setzero_ps
#define _mm512_setzero_si512 emulated_avx512::setzero_si512
#define _mm512_shuffle_f32x4 emulated_avx512::shuffle_f32x4
#define _mm512_shuffle_ps emulated_avx512::shuffle_ps
#define _mm512_slli_epi32 emulated_avx512::slli_epi32
#define _mm512_srai_epi32 emulated_avx512::srai_epi32
#define _mm512_srli_epi16 emulated_avx512::srli_epi16
#define _mm512_srli_epi32 emulated_avx512::srli_epi32
#define _mm512_storeu_ps emulated_avx512::storeu_ps
#define _mm512_sub_epi32 emulated_avx512::sub_epi32
#define _mm512_sub_ps emulated_avx512::sub_ps
#define _mm512_unpackhi_ps emulated_avx512::unpackhi_ps
#define _mm512_unpacklo_ps emulated_avx512::unpacklo_ps
#define _mm512_xor_si512 emulated_avx512::xor_si512
#define __builtin_cpu_supports(feature) (sizeof(feature) > 0)
