// Paged attention and the storage it reads.
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "radixrt/attention.h"
#include "radixrt/attention_plan.h"
#include "radixrt/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace radixrt;

namespace {

using Stored = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<float, nb::ndim<3>, nb::device::cpu>;
using HeadsRead = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using Places = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

KVType type_of(const Stored &stored) {
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
            check(k[i], type);
            check(v[i], type);
            if (num_scales > 0) {
                check(k_scale[i]);
                check(v_scale[i]);
            }
            views.layers.push_back({type, k[i].data(), v[i].data(), num_scales > 0 ? k_scale[i].data() : nullptr,
                                    num_scales > 0 ? v_scale[i].data() : nullptr});
        }
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

    void store(std::size_t index, const Places &slots, const HeadsRead &new_k, const HeadsRead &new_v) const {
        for (const HeadsRead *part : {&new_k, &new_v})
            require(part->shape(0) == slots.shape(0) && part->shape(1) == static_cast<std::size_t>(views.num_kv_heads) &&
                        part->shape(2) == static_cast<std::size_t>(views.head_dim) && heads_together(*part),
                    "[store_kv] K and V are [tokens, num_kv_heads, head_dim], the heads of a token contiguous");
        for (std::size_t i = 0; i < slots.shape(0); ++i)
            require(slots(i) >= 0 && slots(i) < views.num_slots, "[store_kv] a slot is outside the pool");
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
    std::optional<AttentionPlan> plan;

    Plan(Pages pages_, Places starts_, Places counts_, int num_heads, int num_kv_heads, int head_dim, std::int64_t num_slots, int window,
         int num_threads)
        : pages(std::move(pages_)), starts(std::move(starts_)), counts(std::move(counts_)) {
        require(pages.shape(0) == starts.shape(0) && pages.shape(0) == counts.shape(0), "[paged_attention] a start and a count a row");
        const AttentionRows rows{pages.data(), static_cast<std::int64_t>(pages.shape(1)), starts.data(), counts.data(),
                                 static_cast<std::int64_t>(pages.shape(0))};
        const nb::gil_scoped_release release;
        plan.emplace(rows, AttentionShape{num_heads, num_kv_heads, head_dim, window}, num_slots,
                     num_threads > 0 ? num_threads : num_kernel_threads());
    }
};

void attend(const Plan &plan, const Storage &storage, std::size_t layer, const HeadsRead &q, const Heads &out, float scale, bool in_pairs) {
    const AttentionShape &shape = plan.plan->shape();
    require(q.shape(0) == static_cast<std::size_t>(plan.plan->num_tokens()) && q.shape(1) == static_cast<std::size_t>(shape.num_heads) &&
                q.shape(2) == static_cast<std::size_t>(shape.head_dim) && Storage::heads_together(q),
            "[paged_attention] q is [tokens, num_heads, head_dim], the heads of a token contiguous");
    require(out.shape(0) == q.shape(0) && out.shape(1) == q.shape(1) && out.shape(2) == q.shape(2) && Storage::heads_together(out),
            "[paged_attention] out has the shape of q");
    require(storage.views.num_kv_heads == shape.num_kv_heads && storage.views.head_dim == shape.head_dim,
            "[paged_attention] the plan was made for another pool");
    const AttentionArgs args{&*plan.plan, storage.layer(layer), q.data(), out.data(), q.stride(0), out.stride(0), scale};
    const nb::gil_scoped_release release;
    if (in_pairs)
        paged_attention_in_pairs(args, thread_pool());
    else
        paged_attention(args, thread_pool());
}

}  // namespace

void init_attention(nb::module_ &m) {
    nb::class_<Storage>(m, "KVStorage")
        .def(nb::init<std::vector<Stored>, std::vector<Stored>, std::vector<Scales>, std::vector<Scales>>(), "k"_a, "v"_a, "k_scale"_a,
             "v_scale"_a)
        .def("store", &Storage::store, "layer"_a, "slots"_a, "k"_a, "v"_a,
             "Write K/V [T, num_kv_heads, head_dim] float32 into slots [T] int64, no two of them equal.");
    nb::class_<Plan>(m, "AttentionPlan")
        .def(nb::init<Pages, Places, Places, int, int, int, std::int64_t, int, int>(), "page_table"_a, "starts"_a, "counts"_a, "num_heads"_a,
             "num_kv_heads"_a, "head_dim"_a, "num_slots"_a, "window"_a = 0, "num_threads"_a = 0);
    m.def("paged_attention", &attend, "plan"_a, "storage"_a, "layer"_a, "q"_a, "out"_a, "scale"_a, "in_pairs"_a = false,
          "Attend from q [T, num_heads, head_dim] float32 into out; in_pairs takes the portable path with operands rounded to bf16.");
}
