// 2^x, and sums whose order is that of every instruction set: included after the header of one.
#pragma once

namespace radixrt {
namespace {

using F = Simd::F;
constexpr int kLanes = Simd::kLanes;
// Lanes that sums over keys are spread over, whatever the vector length.
constexpr int kSumLanes = 16;
constexpr int kVectorsPerSum = kSumLanes / kLanes;

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLowest = -0x1.fffffep127f;

// x = 2 * 2^(x / kExp2Scale) for x <= 0, and 0 from -2^31 down, as for NaN.
//
// Of an exponent n + f as an integer with 23 bits of f, those bits are what 1 + f has in a float.  Adding all of it to the bits of
// 2^f - f + 1, which is in [1, 2], takes the f there away again: what is left is 2^f one binade up, and n in its exponent.  (Schraudolph,
// "A Fast, Compact Approximation of the Exponential Function", 1999, adds n + f to the bits of a constant.)
template <int Count>
inline void twice_exp2(F (&x)[Count]) {
    F m[Count], p[Count];
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) x[i] = Simd::halved(Simd::integer(x[i]));
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) m[i] = Simd::fraction(x[i]);
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) p[i] = Simd::set1(kExp2[kExp2Degree]);
#pragma GCC unroll 8
    for (int k = kExp2Degree - 1; k >= 0; --k)
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) p[i] = Simd::fma(p[i], m[i], Simd::set1(kExp2[k]));
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) x[i] = Simd::add_bits(p[i], x[i]);
}

// 2^(x / kExp2Scale), exactly 1 for 0.
inline F exp2_of(F x) {
    F one[] = {x};
    twice_exp2(one);
    return Simd::mul(one[0], Simd::set1(0.5f));
}

inline float exp2_of(float x) {
    float lanes[kLanes];
    Simd::store(lanes, exp2_of(Simd::set1(x)));
    return lanes[0];
}

}  // namespace
}  // namespace radixrt
