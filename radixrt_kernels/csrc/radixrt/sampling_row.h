// What sampling does over a whole row of logits, for one instruction set: included after its header.
#pragma once

#include "radixrt/sampling_paths.h"
#include "radixrt/simd_exp2.h"

namespace radixrt {

namespace {

inline float largest(const float *x, std::int64_t count) {
    F best = Simd::set1(kMinusInfinity), invalid = Simd::zero();
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const F value = Simd::load(x + i);
        best = Simd::max(value, best);
        invalid = Simd::keep_nan(invalid, value);
    }
    float most = Simd::reduce_max(best), lanes[kLanes];
    Simd::store(lanes, invalid);
    for (const float lane : lanes) most = lane != lane ? lane : most;
    for (; i < count; ++i) most = x[i] > most || x[i] != x[i] ? x[i] : most;
    return most;
}

inline std::int64_t first_at_least(const float *x, std::int64_t count, float bound) {
    const F bounds = Simd::set1(bound);
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        if (const unsigned found = Simd::at_least(Simd::load(x + i), bounds)) return i + __builtin_ctz(found);
    while (i < count && !(x[i] >= bound)) ++i;
    return i;
}

inline double weigh(const float *x, std::int64_t count, float best, float factor, float *out, double *sums) {
    const F offset = Simd::set1(best), factors = Simd::set1(factor);
    double all = 0.0;
    for (std::int64_t begin = 0; begin < count; begin += kSumBlock) {
        const std::int64_t end = count - begin < kSumBlock ? count : begin + kSumBlock;
        F total[kVectorsPerSum];
        for (F &part : total) part = Simd::zero();
        std::int64_t i = begin;
        for (; i + kSumLanes <= end; i += kSumLanes)
            for (int j = 0; j < kVectorsPerSum; ++j) {
                const F exponent = Simd::mul(Simd::sub(Simd::load(x + i + j * kLanes), offset), factors);
                const F weight = exp2_of(Simd::mul(exponent, Simd::set1(kExp2Scale)));
                Simd::store(out + i + j * kLanes, weight);
                total[j] = Simd::add(total[j], weight);
            }
        double sum = Simd::reduce_add(total);
        for (; i < end; ++i) {
            out[i] = exp2_of((x[i] - best) * factor * kExp2Scale);
            sum += out[i];
        }
        sums[begin / kSumBlock] = sum;
        all += sum;
    }
    return all;
}

inline std::int64_t select(const float *x, std::int64_t count, float bound, std::int32_t *places, std::int64_t most) {
    const F bounds = Simd::set1(bound);
    std::int64_t found = 0, i = 0;
    const auto put = [&](std::int64_t place) {
        if (found < most) places[found] = static_cast<std::int32_t>(place);
        ++found;
    };
    for (; i + kLanes <= count; i += kLanes)
        for (unsigned bits = Simd::at_least(Simd::load(x + i), bounds); bits != 0; bits &= bits - 1) put(i + __builtin_ctz(bits));
    for (; i < count; ++i)
        if (x[i] >= bound) put(i);
    return found;
}

}  // namespace
}  // namespace radixrt
