// Products of few query rows with bf16 K/V as it lies in its slots, on AVX2: each vector of K is turned, and each of V widened, in
// registers where it is used, instead of in a packed block.  Sums run in the order of those over packed blocks, so both give the
// same bits, and a row may meet either.
#pragma once

#include "radixrt/attention_block.h"

namespace radixrt {
namespace {

struct UnpackedBf16 {
    // Beyond this packing once pays for itself.
    static constexpr int kMostRows = 6;
    static constexpr int kLineDims = 32;  // of a cache line
    static constexpr int kDims = 16;  // two vectors: V's words hold the even and the odd dimensions of so many

    static bool serves(int rows, int head_dim) { return rows <= kMostRows && head_dim % kDims == 0; }

    // scores[rows][kBlockKeys] = queries[rows][head_dim] . keys, for the first ``lanes`` keys, a multiple of kSumLanes.
    static void score(int rows, const float *queries, int stride, const Bf16 *const *keys, const Bf16 *const *next, int lanes, int head_dim,
                      float *scores) {
        switch (rows) {
            case 1: return score_rows<1, 2>(queries, stride, keys, next, lanes, head_dim, scores);
            case 2: return score_rows<2, 2>(queries, stride, keys, next, lanes, head_dim, scores);
            case 3: return score_rows<3, 2>(queries, stride, keys, next, lanes, head_dim, scores);
            case 4: return score_rows<4, 1>(queries, stride, keys, next, lanes, head_dim, scores);
            case 5: return score_rows<5, 1>(queries, stride, keys, next, lanes, head_dim, scores);
            default: return score_rows<6, 1>(queries, stride, keys, next, lanes, head_dim, scores);
        }
    }

    // sums[rows][head_dim] = sums * factors[rows] + weights[rows][kBlockKeys] values, for the first ``count`` keys.
    static void weigh(int rows, const float *weights, const Bf16 *const *values, const Bf16 *const *next, int count, int head_dim,
                      const float *factors, float *sums, int stride) {
        switch (rows) {
            case 1: return weigh_rows<1, 4>(weights, values, next, count, head_dim, factors, sums, stride);
            case 2: return weigh_rows<2, 2>(weights, values, next, count, head_dim, factors, sums, stride);
            case 3: return weigh_rows<3, 1>(weights, values, next, count, head_dim, factors, sums, stride);
            case 4: return weigh_rows<4, 1>(weights, values, next, count, head_dim, factors, sums, stride);
            case 5: return weigh_rows<5, 1>(weights, values, next, count, head_dim, factors, sums, stride);
            default: return weigh_rows<6, 1>(weights, values, next, count, head_dim, factors, sums, stride);
        }
    }

private:
    // Four words from each of eight keys, turned: lanes are keys.  The halves of a register take different keys as they are loaded,
    // because moving between halves is slow.
    static void turn(const Bf16 *const *keys, int dimension, F (&words)[4]) {
        __m256i rows[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i *>(keys[i] + dimension));
            rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i *>(keys[4 + i] + dimension)), 1);
        }
        const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpacklo_epi32(rows[2], rows[3]);
        const __m256i c = _mm256_unpackhi_epi32(rows[0], rows[1]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
        words[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi64(a, b));
        words[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi64(a, b));
        words[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi64(c, d));
        words[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi64(c, d));
    }

    // Several vectors of keys at a time, so that a sum's next term need not wait for the last.
    template <int Rows, int Vectors>
    static void score_rows(const float *queries, int stride, const Bf16 *const *keys, const Bf16 *const *next, int lanes, int head_dim,
                           float *scores) {
        for (int key = 0; key < lanes; key += Vectors * kLanes) {
            F acc[Rows][Vectors];
#pragma GCC unroll 6
            for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) acc[row][v] = Simd::zero();
            for (int d = 0; d < head_dim; d += 8) {
                for (int i = 0; i < 2 * Vectors; ++i) __builtin_prefetch(next[key + d / 8 % 4 * 2 * Vectors + i] + d / kLineDims * kLineDims);
                F words[Vectors][4];
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) turn(keys + key + v * kLanes, d, words[v]);
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    F column[Vectors];
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v)
                        column[v] = i % 2 == 0 ? Simd::first_of_pairs(words[v][i / 2]) : Simd::second_of_pairs(words[v][i / 2]);
#pragma GCC unroll 6
                    for (int row = 0; row < Rows; ++row) {
                        const F value = Simd::broadcast(queries + row * stride + d + i);
#pragma GCC unroll 2
                        for (int v = 0; v < Vectors; ++v) acc[row][v] = Simd::fma(value, column[v], acc[row][v]);
                    }
                }
            }
#pragma GCC unroll 6
            for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) Simd::store(scores + row * kBlockKeys + key + v * kLanes, acc[row][v]);
        }
    }

    // Sixteen floats times a factor, as the even and the odd ones.
    static void part(const float *from, float factor, F &even, F &odd) {
        const F low = Simd::mul(Simd::load(from), Simd::set1(factor)), high = Simd::mul(Simd::load(from + kLanes), Simd::set1(factor));
        const auto in_order = [](F x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xD8)); };
        even = in_order(_mm256_shuffle_ps(low, high, 0x88));
        odd = in_order(_mm256_shuffle_ps(low, high, 0xDD));
    }
    static void join(float *to, F even, F odd) {
        const F low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
        _mm_storeu_ps(to, _mm256_castps256_ps128(low));
        _mm_storeu_ps(to + 4, _mm256_castps256_ps128(high));
        _mm_storeu_ps(to + 8, _mm256_extractf128_ps(low, 1));
        _mm_storeu_ps(to + 12, _mm256_extractf128_ps(high, 1));
    }

    // ``Parts`` times sixteen dimensions at a time, as many as registers hold sums of.
    template <int Rows, int Parts>
    static void weigh_rows(const float *weights, const Bf16 *const *values, const Bf16 *const *next, int count, int head_dim,
                           const float *factors, float *sums, int stride) {
        int d = 0;
        for (; d + Parts * kDims <= head_dim; d += Parts * kDims) weigh_dims<Rows, Parts>(weights, values, next, count, d, factors, sums + d, stride);
        for (; d < head_dim; d += kDims) weigh_dims<Rows, 1>(weights, values, next, count, d, factors, sums + d, stride);
    }

    template <int Rows, int Parts>
    static void weigh_dims(const float *weights, const Bf16 *const *values, const Bf16 *const *next, int count, int dimension,
                           const float *factors, float *sums, int stride) {
        F acc[Rows][2 * Parts];
#pragma GCC unroll 6
        for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 4
            for (int p = 0; p < Parts; ++p) part(sums + row * stride + p * kDims, factors[row], acc[row][2 * p], acc[row][2 * p + 1]);
        for (int key = 0; key < count; ++key) {
            if (dimension % kLineDims == 0)
                for (int d = 0; d < Parts * kDims; d += kLineDims) __builtin_prefetch(next[key] + dimension + d);
            F weight[Rows];
#pragma GCC unroll 6
            for (int row = 0; row < Rows; ++row) weight[row] = Simd::broadcast(weights + row * kBlockKeys + key);
#pragma GCC unroll 4
            for (int p = 0; p < Parts; ++p) {
                const F words = Simd::load(reinterpret_cast<const float *>(values[key] + dimension + p * kDims));
                const F even = Simd::first_of_pairs(words), odd = Simd::second_of_pairs(words);
#pragma GCC unroll 6
                for (int row = 0; row < Rows; ++row) {
                    acc[row][2 * p] = Simd::fma(weight[row], even, acc[row][2 * p]);
                    acc[row][2 * p + 1] = Simd::fma(weight[row], odd, acc[row][2 * p + 1]);
                }
            }
        }
#pragma GCC unroll 6
        for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 4
            for (int p = 0; p < Parts; ++p) join(sums + row * stride + p * kDims, acc[row][2 * p], acc[row][2 * p + 1]);
    }
};

}  // namespace
}  // namespace radixrt
