// K/V storage and the plan of a step, as Python holds them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>

#include "radixrt/attention.h"
#include "radixrt/huge_pages.h"
#include "radixrt/kv_store.h"
#include "radixrt/thread_pool.h"

namespace bindings {

namespace nb = nanobind;
using namespace radixrt;

using Stored = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<float, nb::ndim<3>, nb::device::cpu>;
using HeadsRead = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using Places = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline void require(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

inline KVType type_of(const Stored &stored) {
    const auto type = stored.dtype();
    if (type == nb::dtype<float>()) return KVType::f32;
    if (type == nb::dtype<std::int8_t>()) return KVType::int8;
    if (type.lanes == 1 && type.bits == 16) {
        if (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) return KVType::bf16;
        if (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) return KVType::f16;
    }
    throw std::invalid_argument("[kv_storage] K and V are float32, bfloat16, float16 or int8");
}

// The arrays of a pool, kept alive, and their views.
struct Storage {
    std::vector<Stored> k, v;
    std::vector<Scales> k_scale, v_scale;
    KVStorage views;

    Storage(std::vector<Stored> k_, std::vector<Stored> v_, std::vector<Scales> k_scale_, std::vector<Scales> v_scale_)
        : k(std::move(k_)), v(std::move(v_)), k_scale(std::move(k_scale_)), v_scale(std::move(v_scale_)) {
        require(!k.empty() && k.size() == v.size(), "[kv_storage] K and V need as many layers, at least one");
        views = {{}, static_cast<std::int64_t>(k[0].shape(0)), static_cast<int>(k[0].shape(1)), static_cast<int>(k[0].shape(2))};
        const KVType type = type_of(k[0]);
        const std::size_t num_scales = type == KVType::int8 ? k.size() : 0;
        require(k_scale.size() == num_scales && v_scale.size() == num_scales, "[kv_storage] int8 needs scales, other types have none");
        for (std::size_t i = 0; i < k.size(); ++i) {
            for (const Stored &stored : {k[i], v[i]}) {
                check(stored, type);
                advise_huge_pages(stored.data(), stored.nbytes());
            }
            if (num_scales > 0) {
                check(k_scale[i]);
                check(v_scale[i]);
            }
            views.layers.push_back({type, k[i].data(), v[i].data(), num_scales > 0 ? k_scale[i].data() : nullptr,
                                    num_scales > 0 ? v_scale[i].data() : nullptr});
        }
    }

    void commit(std::size_t num_slots) const {
        for (const std::vector<Stored> *stored : {&k, &v})
            for (const Stored &layer : *stored)
                commit_pages(layer.data(), layer.nbytes() / std::max<std::size_t>(layer.shape(0), 1) * std::min(num_slots, layer.shape(0)));
    }

    void check(const Stored &stored, KVType type) const {
        require(type_of(stored) == type, "[kv_storage] all layers have one type");
        require(stored.shape(0) == k[0].shape(0) && stored.shape(1) == k[0].shape(1) && stored.shape(2) == k[0].shape(2),
                "[kv_storage] all layers have one shape");
    }

    void check(const Scales &scales) const {
        require(scales.shape(0) == k[0].shape(0) && scales.shape(1) == k[0].shape(1), "[kv_storage] scales are [num_slots, num_kv_heads]");
    }

    const KVLayer &layer(std::size_t index) const {
        require(index < views.layers.size(), "[kv_storage] no such layer");
        return views.layers[index];
    }

    void check_slots(const Places &slots) const {
        for (std::size_t i = 0; i < slots.shape(0); ++i)
            require(slots(i) >= 0 && slots(i) < views.num_slots, "[store_kv] a slot is outside the pool");
    }

    void store(std::size_t index, const Places &slots, const HeadsRead &new_k, const HeadsRead &new_v) const {
        for (const HeadsRead *part : {&new_k, &new_v})
            require(part->shape(0) == slots.shape(0) && part->shape(1) == static_cast<std::size_t>(views.num_kv_heads) &&
                        part->shape(2) == static_cast<std::size_t>(views.head_dim) && heads_together(*part),
                    "[store_kv] K and V are [tokens, num_kv_heads, head_dim], the heads of a token contiguous");
        check_slots(slots);
        const StoreArgs args{layer(index), new_k.data(), new_v.data(), new_k.stride(0), new_v.stride(0), slots.data(),
                             static_cast<std::int64_t>(slots.shape(0)), views.num_kv_heads, views.head_dim};
        const nb::gil_scoped_release release;
        store_kv(args, thread_pool());
    }

    template <class Array>
    static bool heads_together(const Array &array) {
        return array.shape(0) == 0 || (array.stride(2) == 1 && array.stride(1) == static_cast<std::int64_t>(array.shape(2)));
    }
};

struct Plan {
    Pages pages;
    Places starts, counts;
    std::unique_ptr<const AttentionPlan> plan;

    Plan(Pages pages_, Places starts_, Places counts_, int num_heads, int num_kv_heads, int head_dim, std::int64_t num_slots, int window,
         int num_threads)
        : pages(std::move(pages_)), starts(std::move(starts_)), counts(std::move(counts_)) {
        require(pages.shape(0) == starts.shape(0) && pages.shape(0) == counts.shape(0), "[paged_attention] a start and a count a row");
        const AttentionRows rows{pages.data(), static_cast<std::int64_t>(pages.shape(1)), starts.data(), counts.data(),
                                 static_cast<std::int64_t>(pages.shape(0))};
        const nb::gil_scoped_release release;
        plan = std::make_unique<const AttentionPlan>(rows, AttentionShape{num_heads, num_kv_heads, head_dim, window}, num_slots,
                                                     num_threads > 0 ? num_threads : num_kernel_threads());
    }
};

}  // namespace bindings
