// Conversions of 16-bit floating types, exact and without special instructions.
#pragma once

#include <bit>
#include <cstdint>

namespace radixrt {

inline float float_of_bf16(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

// Rounds to the nearest, ties to even; a NaN stays one.
inline std::uint16_t bf16_of_float(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline float float_of_half(std::uint16_t value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000u) << 16;
    const std::uint32_t magnitude = value & 0x7FFFu;
    if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

// Rounds to the nearest, ties to even; what is too large becomes infinite, and a NaN stays one.
inline std::uint16_t half_of_float(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | 0x7E00u;
    if (magnitude >= 0x477FF000u) return sign | 0x7C00u;
    if (magnitude < 0x38800000u) {
        // The unit of a subnormal half is 2^-24: adding 2^-1 leaves just those bits, rounded as asked for.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u));
    }
    const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
    return static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13);
}

}  // namespace radixrt
