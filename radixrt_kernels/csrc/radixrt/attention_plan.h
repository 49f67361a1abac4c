// How a step's attention is cut into pieces of work; shared by the planner, the kernels and the fold at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "radixrt/attention.h"

namespace radixrt {

// Keys are taken 64 at a time; every 256 positions a new softmax begins, whose result is folded into that of those before.  Both are
// cut at absolute positions, and are part of what a query computes.
constexpr int kBlockKeys = 64;
constexpr int kChunkKeys = 256;
// Query rows (token and head) that a piece of work computes together, at most twice as many.
constexpr int kTileRows = 192;

// Consecutive tokens of one row of the step.
struct Member {
    std::int32_t row;
    std::int32_t count;
    std::int64_t token;     // place of the first in the flattened tokens
    std::int64_t position;  // of the first
    std::int32_t first_chunk;
    std::int32_t last_chunk;
    std::int64_t partials;  // place of its partial results, [chunk][token][head]; -1: none, one piece of work does all chunks
};

// Members that read the same slots, for some K/V heads and chunks.
struct Work {
    std::int32_t member_begin;  // in WorkList::order
    std::int32_t member_end;
    std::int32_t head_begin;
    std::int32_t head_end;
    std::int32_t chunk_begin;
    std::int32_t chunk_end;
    std::int64_t cost;
};

struct WorkList {
    std::vector<Member> members;
    std::vector<std::int32_t> order;  // members of the pieces of work, piece by piece
    std::vector<Work> works;          // costliest first
    // Chunks that a member and K/V head still waits for, [members][num_kv_heads]; who brings the last folds them all.
    std::vector<std::int32_t> expected;
    std::unique_ptr<std::atomic<std::int32_t>[]> missing;
    // A partial result is the weighted sum of values [padded head_dim], then its maximum and its sum of weights.
    std::unique_ptr<float[]> partials;
    std::int64_t partials_size = 0;
    int padded_dim = 0;
    std::int64_t scratch_floats = 0;  // of one thread

    WorkList() = default;
    ~WorkList();
    WorkList(const WorkList &) = delete;
    WorkList &operator=(const WorkList &) = delete;

    int partial_size() const { return padded_dim + 2; }
};

// What a kernel needs to know to do one piece of work.
struct WorkArgs {
    const AttentionArgs *attention;
    WorkList *list;
    const Work *work;
    float *scratch;  // list->scratch_floats of them, aligned to 64 bytes
};

using AttentionKernel = void (*)(const WorkArgs &args);

// One function for each type of stored K/V, in the order of KVType.
struct AttentionPaths {
    AttentionKernel kernel[4];
};

extern const AttentionPaths attention_portable;
// Operands rounded to bf16 where the stored type is bf16 or int8, as the avx512 path does it; for tests of that arithmetic.
extern const AttentionPaths attention_portable_pairs;
void paged_attention_in_pairs(const AttentionArgs &args, ThreadPool &threads);
#if defined(__x86_64__)
extern const AttentionPaths attention_avx2;
extern const AttentionPaths attention_avx512;
#elif defined(__aarch64__)
extern const AttentionPaths attention_neon;
#endif

}  // namespace radixrt
