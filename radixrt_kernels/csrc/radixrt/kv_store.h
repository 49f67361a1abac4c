// The K/V storage of a model as the kernels see it, and writing into it.
//
// K and V of a layer are [num_slots, num_kv_heads, head_dim], contiguous.  An int8 pool has a scale a slot and head beside each: the
// stored value times the scale is K or V.
#pragma once

#include <cstdint>
#include <vector>

namespace radixrt {

class ThreadPool;

enum class KVType : int { f32 = 0, bf16 = 1, f16 = 2, int8 = 3 };

struct KVLayer {
    KVType type;
    void *k;
    void *v;
    float *k_scale;  // [num_slots, num_kv_heads]; null unless type is int8
    float *v_scale;
};

// Views of all layers of a pool; owns nothing.
struct KVStorage {
    std::vector<KVLayer> layers;
    std::int64_t num_slots;
    int num_kv_heads;
    int head_dim;
};

// New K/V of T tokens.  Token t's heads lie at k + t * k_stride, [num_kv_heads, head_dim]; strides are in floats.
struct StoreArgs {
    KVLayer layer;
    const float *k;
    const float *v;
    std::int64_t k_stride;
    std::int64_t v_stride;
    const std::int64_t *slots;  // [T]
    std::int64_t num_tokens;
    int num_kv_heads;
    int head_dim;
};

// Write every token's K/V into its slot: rounded to the nearest (bf16, f16), or as multiples of the head's largest magnitude / 127
// (int8).  Slots are the caller's to check; no two may be equal.
void store_kv(const StoreArgs &args, ThreadPool &threads);

}  // namespace radixrt
