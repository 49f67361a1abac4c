// The Llama family's decoder over a ragged batch: everything between token ids and logits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "radixrt/activations.h"
#include "radixrt/attention.h"
#include "radixrt/kv_store.h"
#include "radixrt/linear.h"

namespace radixrt {

struct DecoderShape {
    std::int64_t hidden_size, intermediate_size;
    std::int64_t num_heads, num_kv_heads, head_dim;
    std::int64_t rotary_dim;
    float rms_norm_eps;
    Activation activation;

    std::int64_t heads() const { return num_heads + 2 * num_kv_heads; }
};

// A matrix with its bias, which may be empty.
struct DecoderLinear {
    std::shared_ptr<const PackedMatrix> matrix;
    std::vector<float> bias;
};

struct DecoderLayer {
    std::vector<float> attention_norm, mlp_norm;
    std::vector<float> q_norm, k_norm;  // [head_dim], or empty
    DecoderLinear q, k, v, output, gate, up, down;
};

// Rotations of positions: cosines [dim / 2], then sines [dim / 2], of each of ``length`` positions.
struct RotaryTable {
    const float *turns;
    std::int64_t length;
};

// Tokens of a step whose hidden states are read: their places in it, ascending, and the attention plan of them alone for the last
// layer, which may be null where there are none.
struct DecoderWanted {
    std::span<const std::int64_t> places;
    const AttentionPlan *plan;
};

// The tokens of a step, in the order of its rows.  Spans are [tokens]; plans has one a layer, of the same step.
struct DecoderStep {
    std::span<const std::int64_t> ids, positions, slots;
    RotaryTable table;
    const KVStorage *storage;
    std::span<const AttentionPlan *const> plans;
    std::optional<DecoderWanted> wanted = {};  // all where there is none
};

// Weights and working memory of one model; one call at a time.  Rows of x are [tokens, hidden_size] float32.
class Decoder {
public:
    // Throws std::invalid_argument when a size does not fit the others.
    Decoder(const DecoderShape &shape, std::vector<DecoderLayer> layers, std::vector<float> final_norm,
            std::shared_ptr<const PackedMatrix> embedding, std::shared_ptr<const PackedMatrix> head);

    const DecoderShape &shape() const { return shape_; }
    std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
    std::int64_t vocab_size() const { return head_->rows(); }

    // The first rows of x [tokens, hidden_size] = the final norm of the hidden states that are wanted of a step, whose K/V is stored in
    // its slots: all that is below, layer by layer.  Of tokens that are not wanted the last layer computes K/V alone.
    void forward(const DecoderStep &step, float *x, ThreadPool &pool);

    // x = the embeddings of the tokens.  Throws std::out_of_range for an id outside the vocabulary.
    void embed(std::span<const std::int64_t> ids, float *x, ThreadPool &pool) const;
    // qkv [tokens, heads, head_dim] = the query, key and value heads of a layer, turned to their positions, which lie in the table.
    void project(std::int64_t layer, const float *x, std::span<const std::int64_t> positions, RotaryTable table, float *qkv, ThreadPool &pool);
    // x = x + the output of attention ``attended`` [tokens, num_heads, head_dim], and then + the gated network of that.
    void finish_layer(std::int64_t layer, const float *attended, std::int64_t tokens, float *x, ThreadPool &pool);
    // out = the final norm of x; may be x itself.
    void final_norm(const float *x, std::int64_t tokens, float *out, ThreadPool &pool) const;
    // logits [tokens, vocab] of rows of final_norm.
    void logits(const float *hidden, std::int64_t tokens, float *out, ThreadPool &pool);
    // The same where bits of ``mask`` [tokens, ceil(vocab / 32)] are set; other logits may have any value.
    void logits_where(const float *hidden, std::int64_t tokens, const std::int32_t *mask, float *out, ThreadPool &pool);

private:
    // Rows as the matrices read them.
    struct Rows {
        const float *x;
        QuantizedRows quantized;
    };
    Rows normed(const float *x, const std::vector<float> &weight, std::int64_t tokens, std::span<const DecoderLinear *const> readers, ThreadPool &pool);
    Rows rows(const float *x, std::int64_t tokens, std::int64_t cols, bool quantize, ThreadPool &pool);
    // ``project`` for the query heads, for those of keys and values, or for both.
    enum class Heads { all, queries, stored };
    void project_heads(Heads heads, std::int64_t layer, const float *x, std::span<const std::int64_t> positions, RotaryTable table, float *qkv,
                       ThreadPool &pool);
    void store(const DecoderStep &step, std::int64_t layer, ThreadPool &pool) const;
    void attend(const DecoderStep &step, const AttentionPlan &plan, std::int64_t layer, ThreadPool &pool);
    // The last layer where only some tokens are wanted, which become the first rows of x.
    void last_layer(const DecoderStep &step, const DecoderWanted &wanted, float *x, ThreadPool &pool);
    void mlp(const DecoderLayer &layer, std::int64_t tokens, float *x, ThreadPool &pool);

    DecoderShape shape_;
    std::vector<DecoderLayer> layers_;
    std::vector<float> final_norm_;
    std::shared_ptr<const PackedMatrix> embedding_, head_;
    float scale_;  // of attention scores
    QuantizedBuffer quantized_;
    std::vector<float> normed_, gate_up_, qkv_, attended_;
    std::vector<std::int64_t> wanted_positions_;
};

// Call f(first, end) for parts of [0, tokens) on the threads of a pool.
template <class F>
void for_token_ranges(std::int64_t tokens, ThreadPool &pool, F &&f) {
    const auto tasks = static_cast<int>(tokens < 4 * pool.num_threads() ? (tokens < 4 ? 1 : tokens / 2) : 4 * pool.num_threads());
    pool.run(tasks, [&](int task) { f(tokens * task / tasks, tokens * (task + 1) / tasks); });
}

}  // namespace radixrt
