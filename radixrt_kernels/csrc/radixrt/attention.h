// Ragged causal attention over slots: any mix of decodes and long extends, K/V read in place through the page table.
//
// ``AttentionPlan`` is made once a step and serves every layer of one head layout and window; ``paged_attention`` runs one layer.
// The definition is radixrt_kernels.reference.paged_attention.
//
// What a query computes depends on its own row and position alone.  Keys are taken in blocks and chunks that are cut at absolute
// positions: an online softmax inside a chunk (arXiv 1805.02867), then the chunks folded in order.  How rows are tiled, stacked where
// they share slots, or spread over threads changes no bit.
#pragma once

#include <cstdint>
#include <memory>

#include "radixrt/kv_store.h"

namespace radixrt {

struct AttentionShape {
    int num_heads;
    int num_kv_heads;  // divides num_heads; query head h reads K/V head h / (num_heads / num_kv_heads)
    int head_dim;      // at most kMaxHeadDim
    int window = 0;    // a query at position p sees positions > p - window; 0 for all of them
};

constexpr int kMaxHeadDim = 512;

// The rows of a step.  Row b computes positions starts[b] .. starts[b] + counts[b] - 1; its tokens lie behind each other in q and
// out, rows in order.  page_table[b * page_stride + p] is the slot of position p of row b.
struct AttentionRows {
    const std::int32_t *page_table;
    std::int64_t page_stride;
    const std::int64_t *starts;
    const std::int64_t *counts;
    std::int64_t num_rows;
};

struct WorkList;

class AttentionPlan {
public:
    // Keeps the pointers of ``rows``: they must outlive the plan.  ``num_threads`` decides only how work is cut.  Throws
    // std::invalid_argument for a shape it cannot serve, rows beyond the page table, and slots outside [0, num_slots).
    AttentionPlan(const AttentionRows &rows, const AttentionShape &shape, std::int64_t num_slots, int num_threads);
    ~AttentionPlan();
    AttentionPlan(AttentionPlan &&) noexcept;
    AttentionPlan &operator=(AttentionPlan &&) noexcept;

    const AttentionRows &rows() const { return rows_; }
    const AttentionShape &shape() const { return shape_; }
    WorkList &work() const { return *work_; }
    std::int64_t num_tokens() const;

private:
    AttentionRows rows_;
    AttentionShape shape_;
    std::unique_ptr<WorkList> work_;
};

// One layer.  Token t's query heads lie at q + t * q_stride, [num_heads, head_dim], and its output at out + t * out_stride; strides
// are in floats.  Scores are scale x q.k, in float32.  K/V of the whole step is stored before.
struct AttentionArgs {
    const AttentionPlan *plan;
    KVLayer layer;
    const float *q;
    float *out;
    std::int64_t q_stride;
    std::int64_t out_stride;
    float scale;
};

// Compute one layer's attention.  One call at a time for a plan: it holds the partial results.
void paged_attention(const AttentionArgs &args, ThreadPool &threads);

}  // namespace radixrt
