#include "radixrt/decoder.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace radixrt {

namespace {

// Tokens whose gated activations are held at a time, so that they stay in the cache.
constexpr std::int64_t kMlpTokens = 128;

void check(bool fits, const char *what) {
    if (!fits) throw std::invalid_argument(std::string("[Decoder] ") + what + " does not fit the sizes of the model");
}

void check_linear(const DecoderLinear &linear, std::int64_t rows, std::int64_t cols, const char *what) {
    check(linear.matrix != nullptr && linear.matrix->rows() == rows && linear.matrix->cols() == cols, what);
    check(linear.bias.empty() || static_cast<std::int64_t>(linear.bias.size()) == rows, what);
}

bool has_size(const std::vector<float> &values, std::int64_t size) { return static_cast<std::int64_t>(values.size()) == size; }

LinearOutput output(const DecoderLinear &linear, float *y, std::int64_t stride, std::int64_t column = 0, bool add = false) {
    return {linear.matrix.get(), linear.bias.empty() ? nullptr : linear.bias.data(), y, stride, column, add};
}

bool reads_quantized(std::span<const DecoderLinear *const> readers) {
    return std::ranges::any_of(readers, [](const DecoderLinear *reader) { return is_quantized(reader->matrix->type()); });
}

}  // namespace

Decoder::Decoder(const DecoderShape &shape, std::vector<DecoderLayer> layers, std::vector<float> final_norm,
                 std::shared_ptr<const PackedMatrix> embedding, std::shared_ptr<const PackedMatrix> head)
    : shape_(shape), layers_(std::move(layers)), final_norm_(std::move(final_norm)), embedding_(std::move(embedding)), head_(std::move(head)),
      scale_(1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {
    const std::int64_t hidden = shape.hidden_size, inner = shape.intermediate_size, head_dim = shape.head_dim;
    const std::int64_t q_size = shape.num_heads * head_dim, kv_size = shape.num_kv_heads * head_dim;
    check(hidden > 0 && inner > 0 && q_size > 0 && kv_size > 0 && shape.num_heads % shape.num_kv_heads == 0, "the shape");
    check(shape.rotary_dim > 0 && shape.rotary_dim % 2 == 0 && shape.rotary_dim <= head_dim, "the rotary dimension");
    check(embedding_ != nullptr && embedding_->cols() == hidden, "the embedding");
    check(head_ != nullptr && head_->cols() == hidden && head_->rows() == embedding_->rows(), "the head");
    check(has_size(final_norm_, hidden), "the final norm");
    for (const DecoderLayer &layer : layers_) {
        check(has_size(layer.attention_norm, hidden) && has_size(layer.mlp_norm, hidden), "a norm");
        check(layer.q_norm.empty() == layer.k_norm.empty(), "a head norm");
        check(layer.q_norm.empty() || (has_size(layer.q_norm, head_dim) && has_size(layer.k_norm, head_dim)), "a head norm");
        check_linear(layer.q, q_size, hidden, "q");
        check_linear(layer.k, kv_size, hidden, "k");
        check_linear(layer.v, kv_size, hidden, "v");
        check_linear(layer.output, hidden, q_size, "the output");
        check_linear(layer.gate, inner, hidden, "gate");
        check_linear(layer.up, inner, hidden, "up");
        check_linear(layer.down, hidden, inner, "down");
    }
}

void Decoder::forward(const DecoderStep &step, float *x, ThreadPool &pool) {
    const auto tokens = static_cast<std::int64_t>(step.ids.size()), num_layers = static_cast<std::int64_t>(layers_.size());
    const std::int64_t head_dim = shape_.head_dim;
    check(step.positions.size() == step.ids.size() && step.slots.size() == step.ids.size(), "a position or slot");
    check(step.plans.size() == layers_.size() && step.storage->layers.size() == layers_.size(), "a plan or the K/V storage");
    check(step.storage->num_kv_heads == shape_.num_kv_heads && step.storage->head_dim == head_dim, "the K/V storage");
    const auto check_plan = [&](const AttentionPlan &plan, std::int64_t planned) {
        const AttentionShape &shape = plan.shape();
        check(plan.num_tokens() == planned && shape.num_heads == shape_.num_heads && shape.num_kv_heads == shape_.num_kv_heads &&
                  shape.head_dim == head_dim,
              "a plan");
    };
    for (const AttentionPlan *plan : step.plans) check_plan(*plan, tokens);
    const auto wanted = step.wanted ? static_cast<std::int64_t>(step.wanted->places.size()) : tokens;
    if (step.wanted) {
        std::int64_t least = 0;
        for (const std::int64_t place : step.wanted->places) {
            check(place >= least && place < tokens, "a wanted place");
            least = place + 1;
        }
        check(wanted == 0 || step.wanted->plan != nullptr, "the plan of wanted tokens");
        if (wanted > 0) check_plan(*step.wanted->plan, wanted);
    }
    const DecoderWanted *some = step.wanted && wanted < tokens && num_layers > 0 ? &*step.wanted : nullptr;
    qkv_.resize(std::max(qkv_.size(), static_cast<std::size_t>(tokens * shape_.heads() * head_dim)));
    attended_.resize(std::max(attended_.size(), static_cast<std::size_t>(tokens * shape_.num_heads * head_dim)));
    embed(step.ids, x, pool);
    for (std::int64_t layer = 0; layer < (some == nullptr ? num_layers : num_layers - 1); ++layer) {
        project(layer, x, step.positions, step.table, qkv_.data(), pool);
        store(step, layer, pool);
        attend(step, *step.plans[static_cast<std::size_t>(layer)], layer, pool);
        finish_layer(layer, attended_.data(), tokens, x, pool);
    }
    if (some != nullptr) last_layer(step, *some, x, pool);
    final_norm(x, wanted, x, pool);
}

void Decoder::last_layer(const DecoderStep &step, const DecoderWanted &wanted, float *x, ThreadPool &pool) {
    const std::int64_t layer = static_cast<std::int64_t>(layers_.size()) - 1, size = shape_.hidden_size;
    project_heads(Heads::stored, layer, x, step.positions, step.table, qkv_.data(), pool);
    store(step, layer, pool);
    const std::span<const std::int64_t> places = wanted.places;
    if (places.empty()) return;
    wanted_positions_.resize(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
        // No row is overwritten before it has moved: places ascend.
        if (places[i] != static_cast<std::int64_t>(i)) std::copy_n(x + places[i] * size, size, x + static_cast<std::int64_t>(i) * size);
        wanted_positions_[i] = step.positions[static_cast<std::size_t>(places[i])];
    }
    project_heads(Heads::queries, layer, x, wanted_positions_, step.table, qkv_.data(), pool);
    attend(step, *wanted.plan, layer, pool);
    finish_layer(layer, attended_.data(), static_cast<std::int64_t>(places.size()), x, pool);
}

void Decoder::store(const DecoderStep &step, std::int64_t layer, ThreadPool &pool) const {
    const std::int64_t stride = shape_.heads() * shape_.head_dim;
    const float *k = qkv_.data() + shape_.num_heads * shape_.head_dim, *v = k + shape_.num_kv_heads * shape_.head_dim;
    store_kv({step.storage->layers[static_cast<std::size_t>(layer)], k, v, stride, stride, step.slots.data(),
              static_cast<std::int64_t>(step.ids.size()), static_cast<int>(shape_.num_kv_heads), static_cast<int>(shape_.head_dim)},
             pool);
}

void Decoder::attend(const DecoderStep &step, const AttentionPlan &plan, std::int64_t layer, ThreadPool &pool) {
    const std::int64_t stride = shape_.heads() * shape_.head_dim, q_size = shape_.num_heads * shape_.head_dim;
    paged_attention({&plan, step.storage->layers[static_cast<std::size_t>(layer)], qkv_.data(), attended_.data(), stride, q_size, scale_}, pool);
}

void Decoder::embed(std::span<const std::int64_t> ids, float *x, ThreadPool &pool) const {
    for (const std::int64_t id : ids)
        if (id < 0 || id >= embedding_->rows()) throw std::out_of_range("[Decoder] token " + std::to_string(id) + " is not in the vocabulary");
    for_token_ranges(static_cast<std::int64_t>(ids.size()), pool, [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t token = first; token < end; ++token) embedding_->unpack_row(ids[static_cast<std::size_t>(token)], x + token * shape_.hidden_size);
    });
}

Decoder::Rows Decoder::normed(const float *x, const std::vector<float> &weight, std::int64_t tokens,
                              std::span<const DecoderLinear *const> readers, ThreadPool &pool) {
    const ActivationPath &path = activation_path();
    const std::int64_t size = shape_.hidden_size;
    const bool quantize = reads_quantized(readers);
    if (normed_.size() < static_cast<std::size_t>(tokens * size)) normed_.resize(static_cast<std::size_t>(tokens * size));
    const QuantizedRows quantized = quantize ? quantized_.rows(tokens, size) : QuantizedRows{};
    for_token_ranges(tokens, pool, [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t token = first; token < end; ++token) {
            float *row = normed_.data() + token * size;
            path.rms_norm(x + token * size, weight.data(), shape_.rms_norm_eps, size, row);
            if (quantize) path.quantize(row, size, quantized, token);
        }
    });
    return {normed_.data(), quantized};
}

Decoder::Rows Decoder::rows(const float *x, std::int64_t tokens, std::int64_t cols, bool quantize, ThreadPool &pool) {
    if (!quantize) return {x, {}};
    const QuantizedRows quantized = quantized_.rows(tokens, cols);
    for_token_ranges(tokens, pool, [&](std::int64_t first, std::int64_t end) {
        const ActivationPath &path = activation_path();
        for (std::int64_t token = first; token < end; ++token) path.quantize(x + token * cols, cols, quantized, token);
    });
    return {x, quantized};
}

void Decoder::project(std::int64_t layer, const float *x, std::span<const std::int64_t> positions, RotaryTable table, float *qkv,
                      ThreadPool &pool) {
    project_heads(Heads::all, layer, x, positions, table, qkv, pool);
}

void Decoder::project_heads(Heads heads_of, std::int64_t index, const float *x, std::span<const std::int64_t> positions, RotaryTable table,
                            float *qkv, ThreadPool &pool) {
    const DecoderLayer &layer = layers_.at(static_cast<std::size_t>(index));
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const std::int64_t head_dim = shape_.head_dim, stride = shape_.heads() * head_dim, half = shape_.rotary_dim / 2;
    for (const std::int64_t position : positions)
        if (position < 0 || position >= table.length) throw std::out_of_range("[Decoder] position " + std::to_string(position) + " has no rotation");
    const DecoderLinear *const all_readers[] = {&layer.q, &layer.k, &layer.v};
    const LinearOutput all_outputs[] = {
        output(layer.q, qkv, stride),
        output(layer.k, qkv, stride, shape_.num_heads * head_dim),
        output(layer.v, qkv, stride, (shape_.num_heads + shape_.num_kv_heads) * head_dim),
    };
    const std::size_t skipped = heads_of == Heads::stored ? 1 : 0, count = heads_of == Heads::queries ? 1 : 3 - skipped;
    const Rows in = normed(x, layer.attention_norm, tokens, std::span(all_readers).subspan(skipped, count), pool);
    linear(in.x, in.quantized, tokens, std::span(all_outputs).subspan(skipped, count), pool);
    // Of values nothing is turned.
    const std::int64_t first_head = heads_of == Heads::stored ? shape_.num_heads : 0;
    const std::int64_t end_head = heads_of == Heads::queries ? shape_.num_heads : shape_.num_heads + shape_.num_kv_heads;
    const ActivationPath &path = activation_path();
    for_token_ranges(tokens, pool, [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t token = first; token < end; ++token) {
            float *heads = qkv + token * stride;
            if (!layer.q_norm.empty()) {
                for (std::int64_t head = first_head; head < end_head; ++head) {
                    const std::vector<float> &weight = head < shape_.num_heads ? layer.q_norm : layer.k_norm;
                    path.rms_norm(heads + head * head_dim, weight.data(), shape_.rms_norm_eps, head_dim, heads + head * head_dim);
                }
            }
            const float *turns = table.turns + positions[static_cast<std::size_t>(token)] * 2 * half;
            path.rope(heads + first_head * head_dim, end_head - first_head, head_dim, turns, turns + half, half);
        }
    });
}

void Decoder::finish_layer(std::int64_t index, const float *attended, std::int64_t tokens, float *x, ThreadPool &pool) {
    const DecoderLayer &layer = layers_.at(static_cast<std::size_t>(index));
    const DecoderLinear *readers[] = {&layer.output};
    const Rows in = rows(attended, tokens, shape_.num_heads * shape_.head_dim, reads_quantized(readers), pool);
    const LinearOutput outputs[] = {output(layer.output, x, shape_.hidden_size, 0, true)};
    linear(in.x, in.quantized, tokens, outputs, pool);
    for (std::int64_t first = 0; first < tokens; first += kMlpTokens)
        mlp(layer, std::min(kMlpTokens, tokens - first), x + first * shape_.hidden_size, pool);
}

void Decoder::mlp(const DecoderLayer &layer, std::int64_t tokens, float *x, ThreadPool &pool) {
    const std::int64_t inner = shape_.intermediate_size;
    const DecoderLinear *readers[] = {&layer.gate, &layer.up}, *down[] = {&layer.down};
    if (gate_up_.size() < static_cast<std::size_t>(tokens * 2 * inner)) gate_up_.resize(static_cast<std::size_t>(tokens * 2 * inner));
    const Rows in = normed(x, layer.mlp_norm, tokens, readers, pool);
    const LinearOutput wide[] = {output(layer.gate, gate_up_.data(), 2 * inner), output(layer.up, gate_up_.data(), 2 * inner, inner)};
    linear(in.x, in.quantized, tokens, wide, pool);

    const ActivationPath &path = activation_path();
    const bool quantize = reads_quantized(down);
    const QuantizedRows quantized = quantize ? quantized_.rows(tokens, inner) : QuantizedRows{};
    if (normed_.size() < static_cast<std::size_t>(tokens * inner)) normed_.resize(static_cast<std::size_t>(tokens * inner));
    for_token_ranges(tokens, pool, [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t token = first; token < end; ++token) {
            const float *gate = gate_up_.data() + token * 2 * inner;
            float *row = normed_.data() + token * inner;
            path.gated(shape_.activation, gate, gate + inner, inner, row);
            if (quantize) path.quantize(row, inner, quantized, token);
        }
    });
    const LinearOutput narrow[] = {output(layer.down, x, shape_.hidden_size, 0, true)};
    linear(normed_.data(), quantized, tokens, narrow, pool);
}

void Decoder::final_norm(const float *x, std::int64_t tokens, float *out, ThreadPool &pool) const {
    const ActivationPath &path = activation_path();
    const std::int64_t size = shape_.hidden_size;
    for_token_ranges(tokens, pool, [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t token = first; token < end; ++token)
            path.rms_norm(x + token * size, final_norm_.data(), shape_.rms_norm_eps, size, out + token * size);
    });
}

void Decoder::logits(const float *hidden, std::int64_t tokens, float *out, ThreadPool &pool) {
    const Rows in = rows(hidden, tokens, shape_.hidden_size, is_quantized(head_->type()), pool);
    const LinearOutput outputs[] = {{head_.get(), nullptr, out, head_->rows(), 0, false}};
    linear(in.x, in.quantized, tokens, outputs, pool);
}

void Decoder::logits_where(const float *hidden, std::int64_t tokens, const std::int32_t *mask, float *out, ThreadPool &pool) {
    const WantedRows wanted(mask, tokens, *head_);
    const std::int64_t size = shape_.hidden_size;
    if (normed_.size() < static_cast<std::size_t>(tokens * size)) normed_.resize(static_cast<std::size_t>(tokens * size));
    for (std::int64_t i = 0; i < tokens; ++i) std::copy_n(hidden + wanted.order[static_cast<std::size_t>(i)] * size, size, normed_.data() + i * size);
    const Rows in = rows(normed_.data(), tokens, size, is_quantized(head_->type()), pool);
    linear_where(in.x, in.quantized, *head_, wanted, out, pool);
}

}  // namespace radixrt
