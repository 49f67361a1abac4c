// Elements of tensors and the arithmetic that every instruction set shares.  Everything here and in the files for one set lies in an
// unnamed namespace: each set's translation unit must keep the code compiled for it to itself.
#pragma once

#include <cstdint>
#include <cstring>

namespace radixrt {
namespace {

struct Bf16 {
    std::uint16_t bits;
};
struct F16 {
    std::uint16_t bits;
};

inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float to_float(float value) { return value; }
inline float to_float(std::int8_t value) { return value; }
inline float to_float(Bf16 value) { return float_of(std::uint32_t{value.bits} << 16); }

inline float to_float(F16 value) {
    const std::uint32_t sign = std::uint32_t{value.bits} >> 15 << 31, magnitude = value.bits & 0x7FFFu;
    // Shifted into place, the exponent is 112 too small; multiplying by 2^112 also makes subnormals right.
    const float shifted = float_of(magnitude << 13) * 0x1p112f;
    const std::uint32_t bits = magnitude >= 0x7C00u ? 0x7F800000u | (magnitude & 0x3FFu) << 13 : bits_of(shifted);
    return float_of(sign | bits);
}

// To nearest, ties to even.
inline std::uint16_t bf16_of(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// Exponents come in units of 2^-24: converted to an integer and halved, 1.0 is what one more in a float's exponent is.
constexpr float kExp2Scale = 0x1p24f;
// 2^f - f + 1 as a polynomial in 1 + f, 0 <= f < 1: fitted to the least largest relative error that 2^f has, which with all roundings is
// 1.6e-7 (2e-7 where products are rounded, too), and to give exactly 2 for f = 0.
constexpr int kExp2Degree = 5;
constexpr float kExp2[kExp2Degree + 1] = {2.49836302f, -0.646510184f, 0.108195558f, 0.0384030975f, -0.000318625593f, 0.00186712958f};

}  // namespace
}  // namespace radixrt
