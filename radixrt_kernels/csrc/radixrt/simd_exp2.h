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

inline F exp2_of(F x) {
    x = Simd::max(Simd::set1(kExp2Least), x);
    const F t = Simd::add(x, Simd::set1(kRound));
    const F r = Simd::sub(x, Simd::sub(t, Simd::set1(kRound)));
    F p = Simd::set1(kExp2[4]);
    for (int i = 3; i >= 0; --i) p = Simd::fma(p, r, Simd::set1(kExp2[i]));
    return Simd::mul(Simd::fma(p, r, Simd::set1(1.0f)), Simd::power(t));
}

inline float exp2_of(float x) {
    float lanes[kLanes];
    Simd::store(lanes, exp2_of(Simd::set1(x)));
    return lanes[0];
}

}  // namespace
}  // namespace radixrt
