#pragma once
// One layer's K/V storage as the kernels see it, and writing into it.
//
// K and V are [num_slots, num_kv_heads, head_dim], contiguous.  An int8 pool has a scale a slot and head beside each: the
// stored value times the scale is K or V.
#include <cstdint>

namespace radixrt {

class ThreadPool;

enum class KVType : int { f32 = 0, bf16 = 1, f16 = 2, int8 = 3 };

struct KVLayer {
    KVType type;
    void* k;
    void* v;
    float* k_scale;  // [num_slots, num_kv_heads]; null unless type is int8
    float* v_scale;
};

inline int bytes_per_element(KVType type) { return type == KVType::f32 ? 4 : type == KVType::int8 ? 1 : 2; }

// New K/V of T tokens.  Token t's heads lie at k + t * k_stride, [num_kv_heads, head_dim]; strides are in floats.
struct StoreArgs {
    KVLayer layer;
    const float* k;
    const float* v;
    int64_t k_stride;
    int64_t v_stride;
    const int64_t* slots;  // [T]
    int64_t num_tokens;
    int num_kv_heads;
    int head_dim;
};

// Writes every token's K/V into its slot, rounded to nearest (bf16, f16) or scaled by the largest magnitude of the head
// (int8).  Slots are the caller's to check; no two may be equal.
void store_kv(const StoreArgs& args, ThreadPool& threads);

}  // namespace radixrt
