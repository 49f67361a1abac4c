// What the AVX2 sources of the quantised products share.
#pragma once

#include <cstdint>
#include <immintrin.h>

namespace radixrt {
namespace {

// Rows of a panel in the lanes of a register.
constexpr int kHalf = 8;

inline __m256 load_halves(const std::uint8_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))); }
inline __m256i load_numbers(const void *from) { return _mm256_loadu_si256(static_cast<const __m256i *>(from)); }

}  // namespace
}  // namespace radixrt
