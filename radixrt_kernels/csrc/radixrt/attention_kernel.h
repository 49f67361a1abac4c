// One piece of attention work, for one instruction set: see attention_block.h.
#pragma once

#include <algorithm>
#include <utility>

#include "radixrt/attention_block.h"

namespace radixrt {
namespace {

// Query rows are the tokens of the members in order, and for each the heads that share a K/V head.  ``Unpacked``, if any, computes
// the products of few rows without packing, to the same bits.
template <class Element, bool Pairs, class Unpacked>
struct Worker {
    // Rows that a product takes together; each strip goes only as far as its rows see.
    static constexpr int kStripRows = Simd::kManyRows;

    const WorkArgs &args;
    const AttentionArgs &attention;
    const AttentionShape &shape;
    const WorkList &list;
    const Work &work;
    const int group;
    const int padded;
    const int words;  // of a query
    const int query_stride;
    int rows = 0;
    std::int64_t least_position = 0, most_position = 0;  // of the rows
    float *queries, *sums, *total_sums, *scores, *factors, *keys, *values, *key_scales, *value_scales;
    RowState *states, *totals;
    std::int64_t *positions;
    // Where K and V of a block lie: of the one at work, of the next, and what to prefetch, which is the former after the last.
    struct Places {
        const Element **keys, **values;
    } here, next, ahead;

    explicit Worker(const WorkArgs &given)
        : args(given), attention(*given.attention), shape(attention.plan->shape()), list(*given.list), work(*given.work),
          group(shape.num_heads / shape.num_kv_heads), padded(list.padded_dim), words(Pairs ? (shape.head_dim + 1) / 2 : shape.head_dim),
          query_stride(padded) {
        for (int i = work.member_begin; i < work.member_end; ++i) rows += list.members[list.order[i]].count * group;
        const std::int64_t heads = work.head_end - work.head_begin;
        float *at = given.scratch;
        const auto take = [&at](std::int64_t floats) {
            float *taken = at;
            at += (floats + 15) / 16 * 16;
            return taken;
        };
        queries = take(heads * rows * padded);
        sums = take(heads * rows * padded);
        total_sums = take(heads * rows * padded);
        scores = take(std::int64_t{rows} * kBlockKeys);
        factors = take(rows);
        keys = take(std::int64_t{padded} * kBlockKeys);
        values = take(std::int64_t{padded} * kBlockKeys);
        key_scales = take(kBlockKeys);
        value_scales = take(kBlockKeys);
        states = reinterpret_cast<RowState *>(take(heads * rows * 2));
        totals = reinterpret_cast<RowState *>(take(heads * rows * 2));
        positions = reinterpret_cast<std::int64_t *>(take(std::int64_t{rows} * 2));
        for (Places *places : {&here, &next}) {
            places->keys = reinterpret_cast<const Element **>(take(kBlockKeys * 2));
            places->values = reinterpret_cast<const Element **>(take(kBlockKeys * 2));
        }
    }

    const Member &member(int i) const { return list.members[list.order[i]]; }

    void run() {
        load_queries();
        const bool whole = work.chunk_end - work.chunk_begin > 1;
        for (int chunk = work.chunk_begin; chunk < work.chunk_end; ++chunk) {
            begin_chunk();
            run_chunk(chunk);
            if (whole) fold_chunk(chunk == work.chunk_begin);
        }
        for (int head = work.head_begin; head < work.head_end; ++head) put_results(head, whole);
    }

    void load_queries() {
        const float scale = attention.scale * 1.4426950408889634f * kExp2Scale;  // the last of which changes no bit of a score but its exponent
        int row = 0;
        least_position = most_position = member(work.member_begin).position;
        for (int i = work.member_begin; i < work.member_end; ++i) {
            const Member &m = member(i);
            least_position = std::min(least_position, m.position);
            most_position = std::max(most_position, m.position + m.count - 1);
            for (int t = 0; t < m.count; ++t)
                for (int h = 0; h < group; ++h, ++row) {
                    positions[row] = m.position + t;
                    for (int head = work.head_begin; head < work.head_end; ++head)
                        load_query(attention.q + (m.token + t) * attention.q_stride + std::int64_t{head * group + h} * shape.head_dim, scale,
                                   queries + (std::int64_t{head - work.head_begin} * rows + row) * query_stride);
                }
        }
    }

    void load_query(const float *from, float scale, float *to) const {
        float scaled[kMaxHeadDim + 2 * kLanes];
        float *out = Pairs ? scaled : to;
        int d = 0;
        for (; d + kLanes <= shape.head_dim; d += kLanes) Simd::store(out + d, Simd::mul(Simd::load(from + d), Simd::set1(scale)));
        for (; d < shape.head_dim; ++d) out[d] = from[d] * scale;
        if constexpr (Pairs) {
            scaled[d] = 0.0f;
            round_words(scaled, words, to);
        }
    }

    // Round 2 x count floats to words, which may take their place.
    static void round_words(const float *from, int count, float *to) {
        if constexpr (Pairs) {
            int i = 0;
            for (; i + kLanes <= count; i += kLanes) Simd::store(to + i, Simd::round_pairs(from + 2 * i));
            if (i >= count) return;
            // By the same instruction, whose subnormals may be zeros: how many words there are depends on other rows.
            float rest[2 * kLanes] = {}, rounded[kLanes];
            const std::size_t left = static_cast<std::size_t>(count - i);
            std::memcpy(rest, from + 2 * i, 2 * left * sizeof(float));
            Simd::store(rounded, Simd::round_pairs(rest));
            std::memcpy(to + i, rounded, left * sizeof(float));
        }
    }

    void begin_chunk() {
        const std::int64_t all = std::int64_t{work.head_end - work.head_begin} * rows;
        for (std::int64_t i = 0; i < all; ++i) states[i] = {kMinusInfinity, 0.0f};
        // Otherwise the block that begins a row's sums clears them; with a window a row may see none of the first.
        if (shape.window > 0) std::memset(sums, 0, sizeof(float) * all * padded);
    }

    void run_chunk(int chunk) {
        std::int64_t begin = std::int64_t{chunk} * kChunkKeys;
        const std::int64_t end = std::min(begin + kChunkKeys, most_position + 1), first = least_position - shape.window + 1;
        if (shape.window > 0 && first > begin) begin = first / kBlockKeys * kBlockKeys;
        const std::int32_t *slots = attention.plan->rows().page_table + member(work.member_begin).row * attention.plan->rows().page_stride;
        const auto keys_of = [end](std::int64_t block) { return static_cast<int>(end - block < kBlockKeys ? end - block : kBlockKeys); };
        if (begin < end) gather(slots + begin, keys_of(begin), work.head_begin, next);
        for (std::int64_t block = begin; block < end; block += kBlockKeys) {
            for (int head = work.head_begin; head < work.head_end; ++head) {
                std::swap(here, next);
                ahead = next;
                if (head + 1 < work.head_end)
                    gather(slots + block, keys_of(block), head + 1, next);
                else if (block + kBlockKeys < end)
                    gather(slots + block + kBlockKeys, keys_of(block + kBlockKeys), work.head_begin, next);
                else
                    ahead = here;
                run_block(slots + block, block, keys_of(block), head);
            }
        }
    }

    // Leave out rows at both ends that see no key of a block.
    void seeing(std::int64_t block, int count, int &begin, int &end) const {
        begin = 0;
        end = rows;
        while (begin < rows && positions[begin] < block) ++begin;
        if (shape.window > 0)
            while (end > begin && positions[end - 1] - shape.window + 1 >= block + count) --end;
    }

    // Whether a block is the first of its chunk that any row sees, and so one that all rows see which see another: sums of weights and
    // values begin there.
    bool begins(std::int64_t block) const { return shape.window == 0 && block % kChunkKeys == 0; }

    static int lanes_of(int keys) { return (keys + kSumLanes - 1) / kSumLanes * kSumLanes; }

    // The keys of a block that a row sees: [first, second).
    std::pair<int, int> seen(int row, std::int64_t block, int count) const {
        const std::int64_t end = positions[row] + 1 - block, begin = shape.window > 0 ? end - shape.window : 0;
        return {static_cast<int>(begin > 0 ? begin : 0), static_cast<int>(end < count ? end : count)};
    }

    // Whether every row sees every key of a block.
    bool all_seen(std::int64_t block, int count) const {
        return least_position >= block + count - 1 && (shape.window == 0 || most_position - shape.window < block);
    }

    // End of the keys of a block that some of the rows see.
    int last_seen(int begin, int end, std::int64_t block, int count) const {
        if (all_seen(block, count)) return count;
        int last = 0;
        for (int row = begin; row < end; ++row) last = std::max(last, seen(row, block, count).second);
        return last;
    }

    void run_block(const std::int32_t *slots, std::int64_t block, int count, int head) {
        int begin, end;
        seeing(block, count, begin, end);
        if (begin >= end) return;
        if constexpr (sizeof(Element) == 1) gather_scales(slots, count, head);
        const std::int64_t offset = std::int64_t{head - work.head_begin} * rows;
        const float *from = queries + (offset + begin) * query_stride;
        float *to = sums + (offset + begin) * padded;
        RowState *at = states + offset + begin;
        if constexpr (!std::is_void_v<Unpacked>) {
            static_assert(Unpacked::kMostRows <= kStripRows);
            if (Unpacked::serves(end - begin, shape.head_dim)) {
                const int last = last_seen(begin, end, block, count);
                Unpacked::score(end - begin, from, query_stride, here.keys, ahead.keys, lanes_of(last), shape.head_dim, scores);
                softmax(begin, end, block, last, scores, at, factors);
                if (begins(block)) std::memset(to, 0, sizeof(float) * (end - begin) * padded);
                return Unpacked::weigh(end - begin, scores, here.values, ahead.values, last, shape.head_dim, factors, to, padded);
            }
        }
        switch (padded) {
            case 64: return run_packed<64>(block, count, begin, end, from, at, to);
            case 128: return run_packed<128>(block, count, begin, end, from, at, to);
            default: return run_packed<0>(block, count, begin, end, from, at, to);
        }
    }

    // ``Padded`` is ``padded`` where it is not 0.
    template <int Padded>
    void run_packed(std::int64_t block, int count, int begin, int end, const float *from, RowState *at, float *to) {
        prefetch(ahead.keys);
        pack_keys<Element, Pairs>(here.keys, count, shape.head_dim, keys);
        for (int row = begin; row < end; row += kStripRows) {
            const int after = std::min(row + kStripRows, end), i = row - begin, last = last_seen(row, after, block, count);
            if (last == 0) continue;
            float *strip = scores + i * kBlockKeys;
            product_strip<Pairs>(after - row, from + std::int64_t{i} * padded, keys, strip, Strides<Padded, kBlockKeys, kBlockKeys>{padded}, words,
                                 lanes_of(last) / kLanes, nullptr);
            softmax(row, after, block, last, strip, at + i, factors + i);
        }
        prefetch(ahead.values);
        pack_values<Element, Pairs>(here.values, count, shape.head_dim, padded, values);
        for (int row = begin; row < end; row += kStripRows) {
            const int after = std::min(row + kStripRows, end), i = row - begin, last = last_seen(row, after, block, count);
            if (last == 0) continue;
            const auto weigh = [&](auto strip_factors) {
                product_strip<Pairs>(after - row, scores + i * kBlockKeys, values, to + std::int64_t{i} * padded,
                                     Strides<kBlockKeys, Padded, Padded>{padded}, Pairs ? (last + 1) / 2 : last, padded / kLanes, strip_factors);
            };
            begins(block) ? weigh(nullptr) : weigh(static_cast<const float *>(factors + i));
        }
    }

    // Turn the scores of a strip of rows, which see keys of a block up to ``last``, into weights, 0 for keys that a row does not see.
    void softmax(int begin, int end, std::int64_t block, int last, float *at, RowState *state, float *factor) {
        const int width = (last + kExpLanes - 1) / kExpLanes * kExpLanes;
        if constexpr (sizeof(Element) == 1) scale_scores(end - begin, width, at);
        for (int row = begin; row < end && !(width == last && all_seen(block, last)); ++row) {
            float *const row_scores = at + (row - begin) * kBlockKeys;
            const auto [seen_begin, seen_end] = seen(row, block, last);
            for (int i = 0; i < seen_begin && i < width; ++i) row_scores[i] = kMinusInfinity;
            for (int i = std::max(seen_end, 0); i < width; ++i) row_scores[i] = kMinusInfinity;
        }
        softmax_strip(end - begin, at, width, sizeof(Element) == 1 ? value_scales : nullptr, state, factor);
        if constexpr (Pairs)
            for (int row = begin; row < end; ++row, at += kBlockKeys) round_words(at, width / 2, at);
    }

    void scale_scores(int count, int width, float *at) const {
        for (int row = 0; row < count; ++row, at += kBlockKeys)
            for (int i = 0; i < width; i += kLanes) Simd::store(at + i, Simd::mul(Simd::load(at + i), Simd::load(key_scales + i)));
    }

    // Find the rows of K and V in the slots of a block; those beyond the count are the first.
    void gather(const std::int32_t *slots, int count, int head, const Places &to) const {
        const auto *k = static_cast<const Element *>(attention.layer.k), *v = static_cast<const Element *>(attention.layer.v);
        for (int i = 0; i < kBlockKeys; ++i) {
            const std::int64_t place = (std::int64_t{slots[i < count ? i : 0]} * shape.num_kv_heads + head) * shape.head_dim;
            to.keys[i] = k + place;
            to.values[i] = v + place;
        }
    }

    void gather_scales(const std::int32_t *slots, int count, int head) {
        for (int i = 0; i < kBlockKeys; ++i) {
            const std::int64_t at = i < count ? std::int64_t{slots[i]} * shape.num_kv_heads + head : 0;
            key_scales[i] = i < count ? attention.layer.k_scale[at] : 0.0f;
            value_scales[i] = i < count ? attention.layer.v_scale[at] : 0.0f;
        }
    }

    // Ask for rows that the next block reads.
    void prefetch(const Element *const *places) const {
        const int bytes = static_cast<int>(sizeof(Element)) * shape.head_dim;
        for (int i = 0; i < kBlockKeys; ++i)
            for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(reinterpret_cast<const char *>(places[i]) + byte);
    }

    void fold_chunk(bool first) {
        const std::int64_t all = std::int64_t{work.head_end - work.head_begin} * rows;
        if (first) std::fill_n(totals, all, RowState{kMinusInfinity, 0.0f});
        for (std::int64_t i = 0; i < all; i += kLanes) {
            const int count = static_cast<int>(std::min<std::int64_t>(kLanes, all - i));
            fold(count, totals + i, total_sums + i * padded, states + i, sums + i * padded, padded);
        }
    }

    void put_results(int head, bool whole) {
        std::int64_t at = std::int64_t{head - work.head_begin} * rows;
        for (int i = work.member_begin; i < work.member_end; ++i) {
            const Member &m = member(i);
            for (int t = 0; t < m.count; ++t)
                for (int h = 0; h < group; ++h, ++at) {
                    if (m.partials < 0)
                        finish(whole ? totals[at] : states[at], (whole ? total_sums : sums) + at * padded,
                               out_of(m, t, head * group + h), shape.head_dim);
                    else
                        put_partial(partial_of(m, work.chunk_begin, t, head * group + h), states[at], sums + at * padded);
                }
            if (m.partials >= 0) complete(list.order[i], m, head);
        }
    }

    float *out_of(const Member &m, int t, int head) const {
        return attention.out + (m.token + t) * attention.out_stride + std::int64_t{head} * shape.head_dim;
    }

    float *partial_of(const Member &m, int chunk, int t, int head) const {
        const std::int64_t place = (std::int64_t{chunk - m.first_chunk} * m.count + t) * shape.num_heads + head;
        return args.list->partials.get() + m.partials + place * list.partial_size();
    }

    void put_partial(float *partial, const RowState &state, const float *row_sums) const {
        std::memcpy(partial, row_sums, sizeof(float) * padded);
        std::memcpy(partial + padded, &state, sizeof state);
    }

    // Who brings the last chunk folds all of them, in order.
    void complete(int index, const Member &m, int head) {
        if (list.missing[index * shape.num_kv_heads + head].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
        for (int t = 0; t < m.count; ++t)
            for (int h = head * group; h < (head + 1) * group; ++h) {
                RowState total{kMinusInfinity, 0.0f};
                for (int chunk = m.first_chunk; chunk <= m.last_chunk; ++chunk) {
                    const float *partial = partial_of(m, chunk, t, h);
                    RowState state;
                    std::memcpy(&state, partial + padded, sizeof state);
                    fold(1, &total, total_sums, &state, partial, padded);
                }
                finish(total, total_sums, out_of(m, t, h), shape.head_dim);
            }
    }
};

template <class Element, bool Pairs, class Unpacked = void>
void attend(const WorkArgs &args) {
    Worker<Element, Pairs, Unpacked>(args).run();
}

}  // namespace
}  // namespace radixrt
