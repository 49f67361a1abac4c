// The Llama family's decoder.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "attention.h"
#include "bindings.h"
#include "radixrt/decoder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using radixrt::Decoder;
using radixrt::DecoderLayer;
using radixrt::DecoderLinear;
using radixrt::DecoderShape;
using radixrt::PackedMatrix;

using Vector = Array<const float, 1>;
using Rows = Array<float, 2>;

std::vector<float> optional_vector(nb::handle object) { return object.is_none() ? std::vector<float>() : copied(nb::cast<Vector>(object)); }

DecoderLinear linear_of(nb::handle pair) {
    const auto parts = nb::cast<nb::tuple>(pair);
    return {nb::cast<std::shared_ptr<PackedMatrix>>(parts[0]), optional_vector(parts[1])};
}

DecoderLayer layer_of(const nb::dict &fields) {
    return {optional_vector(fields["attention_norm"]), optional_vector(fields["mlp_norm"]), optional_vector(fields["q_norm"]),
            optional_vector(fields["k_norm"]),         linear_of(fields["q"]),              linear_of(fields["k"]),
            linear_of(fields["v"]),                    linear_of(fields["output"]),         linear_of(fields["gate"]),
            linear_of(fields["up"]),                   linear_of(fields["down"])};
}

void make(Decoder *self, const nb::dict &shape, const nb::list &layers, const Vector &final_norm, std::shared_ptr<PackedMatrix> embedding,
          std::shared_ptr<PackedMatrix> head) {
    const auto size = [&](const char *name) { return nb::cast<std::int64_t>(shape[name]); };
    const DecoderShape described{size("hidden_size"),
                                 size("intermediate_size"),
                                 size("num_heads"),
                                 size("num_kv_heads"),
                                 size("head_dim"),
                                 size("rotary_dim"),
                                 nb::cast<float>(shape["rms_norm_eps"]),
                                 radixrt::activation_of(nb::cast<std::string>(shape["activation"]))};
    std::vector<DecoderLayer> made;
    for (const nb::handle layer : layers) made.push_back(layer_of(nb::cast<nb::dict>(layer)));
    new (self) Decoder(described, std::move(made), copied(final_norm), std::move(embedding), std::move(head));
}

void check_rows(const Rows &x, std::int64_t tokens, std::int64_t size, const char *name) {
    check_size("Decoder", name, x, 0, tokens);
    check_size("Decoder", name, x, 1, size);
}

void check_table(const Decoder &decoder, const Array<const float, 3> &table) {
    check_size("Decoder", "table", table, 1, 2);
    check_size("Decoder", "table", table, 2, decoder.shape().rotary_dim / 2);
}

void forward(Decoder &decoder, const Array<const std::int64_t, 1> &ids, const Array<const std::int64_t, 1> &positions,
             const Array<const float, 3> &table, const bindings::Storage &storage, const Array<const std::int64_t, 1> &slots,
             const std::vector<const bindings::Plan *> &plans, const Rows &x, const std::optional<Array<const std::int64_t, 1>> &wanted,
             const bindings::Plan *wanted_plan) {
    check_rows(x, static_cast<std::int64_t>(ids.shape(0)), decoder.shape().hidden_size, "x");
    check_table(decoder, table);
    storage.check_slots(slots);
    std::vector<const radixrt::AttentionPlan *> of_layers;
    of_layers.reserve(plans.size());
    for (const bindings::Plan *plan : plans) of_layers.push_back(plan->plan.get());
    std::optional<radixrt::DecoderWanted> of_last;
    if (wanted) of_last = {items(*wanted), wanted_plan == nullptr ? nullptr : wanted_plan->plan.get()};
    const nb::gil_scoped_release release;
    decoder.forward({items(ids), items(positions), items(slots), {table.data(), static_cast<std::int64_t>(table.shape(0))}, &storage.views,
                     of_layers, of_last},
                    x.data(), radixrt::thread_pool());
}

void embed(const Decoder &decoder, const Array<const std::int64_t, 1> &ids, const Rows &x) {
    check_rows(x, static_cast<std::int64_t>(ids.shape(0)), decoder.shape().hidden_size, "x");
    const nb::gil_scoped_release release;
    decoder.embed(items(ids), x.data(), radixrt::thread_pool());
}

void project(Decoder &decoder, std::int64_t layer, const Rows &x, const Array<const std::int64_t, 1> &positions,
             const Array<const float, 3> &table, const Array<float, 3> &qkv) {
    const auto tokens = static_cast<std::int64_t>(positions.shape(0));
    const DecoderShape &shape = decoder.shape();
    check_rows(x, tokens, shape.hidden_size, "x");
    check_table(decoder, table);
    check_size("Decoder", "qkv", qkv, 0, tokens);
    check_size("Decoder", "qkv", qkv, 1, shape.heads());
    check_size("Decoder", "qkv", qkv, 2, shape.head_dim);
    const nb::gil_scoped_release release;
    decoder.project(layer, x.data(), items(positions), {table.data(), static_cast<std::int64_t>(table.shape(0))}, qkv.data(), radixrt::thread_pool());
}

void finish_layer(Decoder &decoder, std::int64_t layer, const Array<const float, 3> &attended, const Rows &x) {
    const auto tokens = static_cast<std::int64_t>(attended.shape(0));
    check_rows(x, tokens, decoder.shape().hidden_size, "x");
    check_size("Decoder", "attended", attended, 1, decoder.shape().num_heads);
    check_size("Decoder", "attended", attended, 2, decoder.shape().head_dim);
    const nb::gil_scoped_release release;
    decoder.finish_layer(layer, attended.data(), tokens, x.data(), radixrt::thread_pool());
}

void final_norm(const Decoder &decoder, const Rows &x) {
    check_size("Decoder", "x", x, 1, decoder.shape().hidden_size);
    const nb::gil_scoped_release release;
    decoder.final_norm(x.data(), static_cast<std::int64_t>(x.shape(0)), x.data(), radixrt::thread_pool());
}

void logits(Decoder &decoder, const Array<const float, 2> &hidden, const Rows &out) {
    const auto tokens = static_cast<std::int64_t>(hidden.shape(0));
    check_size("Decoder", "hidden", hidden, 1, decoder.shape().hidden_size);
    check_rows(out, tokens, decoder.vocab_size(), "out");
    const nb::gil_scoped_release release;
    decoder.logits(hidden.data(), tokens, out.data(), radixrt::thread_pool());
}

void logits_where(Decoder &decoder, const Array<const float, 2> &hidden, const Array<const std::int32_t, 2> &mask, const Rows &out) {
    const auto tokens = static_cast<std::int64_t>(hidden.shape(0));
    check_size("Decoder", "hidden", hidden, 1, decoder.shape().hidden_size);
    check_size("Decoder", "mask", mask, 0, tokens);
    check_size("Decoder", "mask", mask, 1, (decoder.vocab_size() + 31) / 32);
    check_rows(out, tokens, decoder.vocab_size(), "out");
    const nb::gil_scoped_release release;
    decoder.logits_where(hidden.data(), tokens, mask.data(), out.data(), radixrt::thread_pool());
}

}  // namespace

void init_decoder(nb::module_ &m) {  // NOLINT(misc-const-correctness): one signature for all
    nb::class_<Decoder>(m, "Decoder", "The Llama family's decoder; one call at a time.")
        .def("__init__", &make, "shape"_a, "layers"_a, "final_norm"_a, "embedding"_a, "head"_a)
        .def("forward", &forward, "ids"_a, "positions"_a, "table"_a, "storage"_a, "slots"_a, "plans"_a, "x"_a, "wanted"_a = nb::none(),
             "wanted_plan"_a = nb::none(),
             "x [tokens, hidden] = the normed hidden states of a step, with one attention plan a layer; of only the ``wanted`` places, which "
             "ascend, in the first rows of x, with a plan of these tokens alone for the last layer.")
        .def("embed", &embed, "ids"_a, "x"_a, "x [tokens, hidden] = the embeddings of the tokens.")
        .def("project", &project, "layer"_a, "x"_a, "positions"_a, "table"_a, "qkv"_a,
             "qkv [tokens, heads, head_dim] = turned queries and keys, and values, of a layer; table [positions, 2, rotary_dim / 2].")
        .def("finish_layer", &finish_layer, "layer"_a, "attended"_a, "x"_a, "Add the layer's attention and gated network to x.")
        .def("final_norm", &final_norm, "x"_a, "Norm x in place.")
        .def("logits", &logits, "hidden"_a, "out"_a, "out [tokens, vocab] float32.")
        .def("logits_where", &logits_where, "hidden"_a, "mask"_a, "out"_a,
             "The same where bits of mask int32 [tokens, ceil(vocab / 32)] are set; what else out holds may be anything.");
}
