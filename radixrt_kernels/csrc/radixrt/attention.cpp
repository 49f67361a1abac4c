#include "radixrt/attention.h"

#include <cmath>
#include <new>

#include "radixrt/attention_plan.h"
#include "radixrt/cpu.h"
#include "radixrt/half.h"
#include "radixrt/thread_pool.h"

namespace radixrt {

namespace {

constexpr std::align_val_t kAlignment{64};

// One thread's memory, which grows to what the largest piece of work needs.
class Scratch {
public:
    ~Scratch() { operator delete[](floats_, kAlignment); }

    float *of(std::int64_t size) {
        if (size > size_) {
            operator delete[](floats_, kAlignment);
            floats_ = nullptr;
            size_ = 0;
            floats_ = static_cast<float *>(operator new[](static_cast<std::size_t>(size) * sizeof(float), kAlignment));
            size_ = size;
        }
        return floats_;
    }

private:
    float *floats_ = nullptr;
    std::int64_t size_ = 0;
};

thread_local Scratch scratch;

void run(const AttentionArgs &args, const AttentionPaths &paths, ThreadPool &threads) {
    WorkList &list = args.plan->work();
    for (std::size_t i = 0; i < list.expected.size(); ++i) list.missing[i].store(list.expected[i], std::memory_order_relaxed);
    const AttentionKernel kernel = paths.kernel[static_cast<int>(args.layer.type)];
    threads.run(static_cast<int>(list.works.size()),
                [&](int task) { kernel({&args, &list, &list.works[task], scratch.of(list.scratch_floats)}); });
}

// A small step with every kind of work, on numbers that any path can compute.
struct Trial {
    static constexpr int kHeads = 4, kKVHeads = 2, kDim = 40, kSlots = 320, kRows = 3, kTokens = 32;
    std::vector<std::int32_t> pages;
    std::vector<std::int64_t> starts{0, 261, 299}, counts{30, 1, 1};
    std::vector<float> q, k, v, k_scale, v_scale;
    std::vector<std::uint16_t> k16, v16;
    std::vector<std::int8_t> k8, v8;
    std::uint32_t noise = 1;

    Trial() : pages(kRows * kSlots), q(kTokens * kHeads * kDim), k(kSlots * kKVHeads * kDim), v(k.size()), k_scale(kSlots * kKVHeads),
              v_scale(k_scale.size()), k16(k.size()), v16(k.size()), k8(k.size()), v8(k.size()) {
        for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i * 7 % kSlots);
        for (std::vector<float> *part : {&q, &k, &v, &k_scale, &v_scale})
            for (float &value : *part) value = next();
    }

    float next() {
        noise = noise * 1664525u + 1013904223u;
        return static_cast<float>(noise >> 8) * 0x1p-23f - 1.0f;
    }

    std::vector<float> attend(const AttentionPaths &paths, KVType type) {
        KVLayer layer{type, k.data(), v.data(), nullptr, nullptr};
        if (type == KVType::bf16 || type == KVType::f16) {
            for (std::size_t i = 0; i < k.size(); ++i) {
                k16[i] = type == KVType::bf16 ? bf16_of_float(k[i]) : half_of_float(k[i]);
                v16[i] = type == KVType::bf16 ? bf16_of_float(v[i]) : half_of_float(v[i]);
            }
            layer = {type, k16.data(), v16.data(), nullptr, nullptr};
        } else if (type == KVType::int8) {
            for (std::size_t i = 0; i < k.size(); ++i) {
                k8[i] = static_cast<std::int8_t>(k[i] * 127.0f);
                v8[i] = static_cast<std::int8_t>(v[i] * 127.0f);
            }
            layer = {type, k8.data(), v8.data(), k_scale.data(), v_scale.data()};
        }
        const AttentionRows rows{pages.data(), kSlots, starts.data(), counts.data(), kRows};
        const AttentionPlan plan(rows, {kHeads, kKVHeads, kDim, 0}, kSlots, 1);
        std::vector<float> out(q.size());
        ThreadPool alone(1);
        const float scale = type == KVType::int8 ? 0.001f : 0.1f;
        run({&plan, layer, q.data(), out.data(), kHeads * kDim, kHeads * kDim, scale}, paths, alone);
        return out;
    }
};

bool agrees(const AttentionPaths &path, const AttentionPaths &portable) {
    Trial trial;
    for (int type = 0; type < 4; ++type) {
        const std::vector<float> found = trial.attend(path, static_cast<KVType>(type));
        const std::vector<float> expected = trial.attend(portable, static_cast<KVType>(type));
        // A path may round operands of these types to bf16.
        const bool rounds = static_cast<KVType>(type) == KVType::bf16 || static_cast<KVType>(type) == KVType::int8;
        float largest = 0.0f, error = 0.0f;
        for (std::size_t i = 0; i < found.size(); ++i) {
            largest = std::fmax(largest, std::fabs(expected[i]));
            const float off = std::fabs(found[i] - expected[i]);
            error = off <= error ? error : off;  // NaN stays
        }
        if (!(error <= (rounds ? 1e-2f : 1e-5f) * largest)) return false;
    }
    return true;
}

Paths<AttentionPaths> &all_paths() {
#if defined(__x86_64__)
    static Paths<AttentionPaths> paths("paged_attention", attention_portable, &attention_avx2, &attention_avx512, agrees);
#elif defined(__aarch64__)
    static Paths<AttentionPaths> paths("paged_attention", attention_portable, &attention_neon, nullptr, agrees);
#else
    static Paths<AttentionPaths> paths("paged_attention", attention_portable, nullptr, nullptr, agrees);
#endif
    return paths;
}

}  // namespace

void paged_attention(const AttentionArgs &args, ThreadPool &threads) { run(args, all_paths()(), threads); }

void paged_attention_in_pairs(const AttentionArgs &args, ThreadPool &threads) { run(args, attention_portable_pairs, threads); }

}  // namespace radixrt
