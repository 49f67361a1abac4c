// What sampling does over a whole row of logits, once for each instruction set.
#pragma once

#include <cstdint>

namespace radixrt {

// Weights are summed in blocks of so many, in double between blocks.
constexpr std::int64_t kSumBlock = 256;

struct SamplingPaths {
    // The largest of count numbers; NaN when one is.
    float (*largest)(const float *x, std::int64_t count);
    // Place of the first that is at least a bound; count when there is none.
    std::int64_t (*first_at_least)(const float *x, std::int64_t count, float bound);
    // out = 2^((x - best) * factor), and the sum of each block of kSumBlock; returns the sum of all.
    double (*weigh)(const float *x, std::int64_t count, float best, float factor, float *out, double *sums);
    // Places of all that are at least a bound, in order; returns how many, and writes at most ``most`` of them.
    std::int64_t (*select)(const float *x, std::int64_t count, float bound, std::int32_t *places, std::int64_t most);
};

extern const SamplingPaths sampling_portable;
#if defined(__x86_64__)
extern const SamplingPaths sampling_avx2;
extern const SamplingPaths sampling_avx512;
#elif defined(__aarch64__)
extern const SamplingPaths sampling_neon;
#endif

}  // namespace radixrt
