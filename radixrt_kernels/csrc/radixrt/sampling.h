// From logits to tokens, for all sampled positions of a step.  A row depends on its own logits, parameters and noise alone.
//
// The definition is radixrt.runner.sampler: weights of the softmax are computed here within 4e-7 of it, relatively, so that a token
// differs only where the uniform number lies that close to the border of two.
#pragma once

#include <cstdint>

namespace radixrt {

class ThreadPool;

// Sparse changes: entry i concerns logits[rows[i], tokens[i]].
struct LogitEdits {
    const std::int64_t *rows;
    const std::int64_t *tokens;
    const float *values;
    std::int64_t count;
};

// Every array is [num_rows]; see radixrt.batch.SamplingBatch.
struct SamplingArgs {
    float *logits;  // [num_rows, vocab_size], edited in place
    std::int64_t num_rows;
    std::int64_t vocab_size;
    const bool *greedy;
    const float *temperature;
    const std::int64_t *top_k;
    const float *top_p;
    const float *min_p;
    const double *uniform;
    LogitEdits penalties;   // added
    LogitEdits repetition;  // divides what is positive, multiplies what is not
    LogitEdits bias;        // added
    const std::int32_t *mask;  // [num_rows, ceil(vocab_size / 32)]: bit t allows token t; or null
    std::int64_t *tokens;      // out; -1 where the largest logit is not finite or one is NaN
};

void sample(const SamplingArgs &args, ThreadPool &threads);

struct LogprobArgs {
    const float *logits;  // [num_rows, vocab_size]
    std::int64_t num_rows;
    std::int64_t vocab_size;
    const std::int64_t *chosen;  // [num_rows]; below 0 is taken for 0
    std::int64_t num_top;
    const std::int64_t *given;  // [num_rows, num_given]; below 0 is taken for 0
    std::int64_t num_given;
    float *chosen_logprobs;  // [num_rows]
    float *top_logprobs;     // [num_rows, num_top], largest first, ties by id
    std::int64_t *top_ids;
    float *given_logprobs;  // [num_rows, num_given]
};

// Logarithms of the softmax.
void logprobs_of(const LogprobArgs &args, ThreadPool &threads);

}  // namespace radixrt
