#include "radixrt/kv_store.h"

#include <algorithm>
#include <cmath>

#include "radixrt/half.h"
#include "radixrt/thread_pool.h"

namespace radixrt {

namespace {

constexpr std::int64_t kTokensPerTask = 32;
constexpr float kLargest = 127.0f;

// The scale of a head, by which its values are multiples of at most 127.  NaN and infinity make it NaN or infinite.
float quantise(const float *from, int size, std::int8_t *to) {
    float largest = 0.0f;
    bool finite = true;
    for (int i = 0; i < size; ++i) {
        const float magnitude = std::fabs(from[i]);
        largest = magnitude > largest ? magnitude : largest;
        finite &= magnitude <= 0x1.fffffep127f;
    }
    const float scale = largest / kLargest;
    const float inverse = largest > 0.0f ? kLargest / largest : 0.0f;
    if (!finite || !std::isfinite(inverse)) {
        std::fill(to, to + size, std::int8_t{finite ? std::int8_t{0} : std::int8_t{1}});
        return finite ? 0.0f : NAN;
    }
    for (int i = 0; i < size; ++i) to[i] = static_cast<std::int8_t>(std::nearbyint(from[i] * inverse));
    return scale;
}

void put_head(const float *from, int size, KVType type, void *rows, float *scales, std::int64_t place) {
    const std::int64_t at = place * size;
    switch (type) {
        case KVType::f32: std::copy(from, from + size, static_cast<float *>(rows) + at); break;
        case KVType::bf16: std::transform(from, from + size, static_cast<std::uint16_t *>(rows) + at, bf16_of_float); break;
        case KVType::f16: std::transform(from, from + size, static_cast<std::uint16_t *>(rows) + at, half_of_float); break;
        case KVType::int8: scales[place] = quantise(from, size, static_cast<std::int8_t *>(rows) + at); break;
    }
}

}  // namespace

void store_kv(const StoreArgs &args, ThreadPool &threads) {
    const auto put = [&](std::int64_t token) {
        for (int head = 0; head < args.num_kv_heads; ++head) {
            const std::int64_t place = args.slots[token] * args.num_kv_heads + head;
            const std::int64_t offset = std::int64_t{head} * args.head_dim;
            put_head(args.k + token * args.k_stride + offset, args.head_dim, args.layer.type, args.layer.k, args.layer.k_scale, place);
            put_head(args.v + token * args.v_stride + offset, args.head_dim, args.layer.type, args.layer.v, args.layer.v_scale, place);
        }
    };
    const std::int64_t tasks = (args.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
    threads.run(static_cast<int>(tasks), [&](int task) {
        const std::int64_t end = std::min(args.num_tokens, (task + 1) * kTokensPerTask);
        for (std::int64_t token = task * kTokensPerTask; token < end; ++token) put(token);
    });
}

}  // namespace radixrt
