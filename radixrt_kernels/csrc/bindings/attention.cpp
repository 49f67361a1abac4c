// Paged attention and the storage it reads.
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "attention.h"
#include "bindings.h"
#include "radixrt/attention.h"
#include "radixrt/attention_plan.h"
#include "radixrt/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace bindings;

namespace {

void attend(const Plan &plan, const Storage &storage, std::size_t layer, const HeadsRead &q, const Heads &out, float scale, bool in_pairs) {
    const AttentionShape &shape = plan.plan->shape();
    require(q.shape(0) == static_cast<std::size_t>(plan.plan->num_tokens()) && q.shape(1) == static_cast<std::size_t>(shape.num_heads) &&
                q.shape(2) == static_cast<std::size_t>(shape.head_dim) && Storage::heads_together(q),
            "[paged_attention] q is [tokens, num_heads, head_dim], the heads of a token contiguous");
    require(out.shape(0) == q.shape(0) && out.shape(1) == q.shape(1) && out.shape(2) == q.shape(2) && Storage::heads_together(out),
            "[paged_attention] out has the shape of q");
    require(storage.views.num_kv_heads == shape.num_kv_heads && storage.views.head_dim == shape.head_dim,
            "[paged_attention] the plan was made for another pool");
    const AttentionArgs args{plan.plan.get(), storage.layer(layer), q.data(), out.data(), q.stride(0), out.stride(0), scale};
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
             "Write K/V [T, num_kv_heads, head_dim] float32 into slots [T] int64, no two of them equal.")
        .def("commit", &Storage::commit, "num_slots"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Have the system commit the memory of the first slots now; what they hold stays, whoever writes meanwhile.");
    nb::class_<Plan>(m, "AttentionPlan")
        .def(nb::init<Pages, Places, Places, int, int, int, std::int64_t, int, int>(), "page_table"_a, "starts"_a, "counts"_a, "num_heads"_a,
             "num_kv_heads"_a, "head_dim"_a, "num_slots"_a, "window"_a = 0, "num_threads"_a = 0);
    m.def("paged_attention", &attend, "plan"_a, "storage"_a, "layer"_a, "q"_a, "out"_a, "scale"_a, "in_pairs"_a = false,
          "Attend from q [T, num_heads, head_dim] float32 into out; in_pairs takes the portable path with operands rounded to bf16.");
}
