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

// Stage by stage, so that neighbouring instructions do not wait for each other.
template <int Count>
inline void exp2_of(F (&x)[Count]) {
    F t[Count], p[Count];
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) x[i] = Simd::max(Simd::set1(kExp2Least), x[i]);
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) t[i] = Simd::add(x[i], Simd::set1(kRound));
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) x[i] = Simd::sub(x[i], Simd::sub(t[i], Simd::set1(kRound)));
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) p[i] = Simd::set1(kExp2[4]);
#pragma GCC unroll 8
    for (int k = 3; k >= 0; --k)
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) p[i] = Simd::fma(p[i], x[i], Simd::set1(kExp2[k]));
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) x[i] = Simd::mul(Simd::fma(p[i], x[i], Simd::set1(1.0f)), Simd::power(t[i]));
}

inline F exp2_of(F x) {
    F one[] = {x};
    exp2_of(one);
    return one[0];
}

inline float exp2_of(float x) {
    float lanes[kLanes];
    Simd::store(lanes, exp2_of(Simd::set1(x)));
    return lanes[0];
}

}  // namespace
}  // namespace radixrt
