#include "radixrt/attention_plan.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace radixrt {

namespace {

constexpr int kLaneMultiple = 16;
// A row of the step with at most this many query rows (token and head) is stacked with others that read the same chunk.
constexpr int kShortRows = 48;
// Pieces of work a thread should find, so that none waits long for the last.
constexpr int kWorksPerThread = 4;
// Queries and results of a piece of work should stay in the second-level cache.
constexpr std::int64_t kTileFloats = 64 * 1024;

int chunk_of(std::int64_t position) { return static_cast<int>(position / kChunkKeys); }

// The largest buffer given back: a step's partial results take megabytes, which would be mapped and cleared anew each time.
std::mutex spare_mutex;
std::unique_ptr<float[]> spare;
std::int64_t spare_size = 0;

void take_partials(WorkList &list, std::int64_t size) {
    const std::lock_guard lock(spare_mutex);
    if (size <= spare_size) {
        list.partials = std::move(spare);
        list.partials_size = std::exchange(spare_size, 0);
    } else {
        list.partials = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size));
        list.partials_size = size;
    }
}

std::int64_t first_seen(std::int64_t position, int window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

class Planner {
public:
    Planner(const AttentionRows &rows, const AttentionShape &shape, int num_threads, WorkList &list)
        : rows_(rows), shape_(shape), group_(shape.num_heads / shape.num_kv_heads), num_threads_(num_threads), list_(list) {}

    void plan() {
        list_.padded_dim = (shape_.head_dim + kLaneMultiple - 1) / kLaneMultiple * kLaneMultiple;
        cut_rows();
        std::int64_t whole = 0;
        for (const Member &member : list_.members) whole += member.count * group_ > kShortRows;
        // With few tiles, threads share the chunks of each instead.
        if (whole * shape_.num_kv_heads < 2 * num_threads_) whole = 0;
        std::vector<std::int32_t> parted;
        for (std::size_t i = 0; i < list_.members.size(); ++i) {
            if (whole > 0 && list_.members[i].count * group_ > kShortRows)
                add_whole(static_cast<std::int32_t>(i));
            else
                parted.push_back(static_cast<std::int32_t>(i));
        }
        add_parted(parted);
        place_partials();
        std::stable_sort(list_.works.begin(), list_.works.end(), [](const Work &a, const Work &b) { return a.cost > b.cost; });
    }

private:
    // Twice as many rows share one packing of K and V where tiles are enough for all threads even so.
    int tile_rows() const {
        std::int64_t large = 0;
        for (std::int64_t row = 0; row < rows_.num_rows; ++row) large += rows_.counts[row] * group_ / (2 * kTileRows);
        return large * shape_.num_kv_heads >= std::int64_t{kWorksPerThread} * num_threads_ ? 2 * kTileRows : kTileRows;
    }

    void cut_rows() {
        const int tile = std::max(1, tile_rows() / group_);
        std::int64_t token = 0;
        for (std::int64_t row = 0; row < rows_.num_rows; ++row) {
            for (std::int64_t done = 0; done < rows_.counts[row]; done += tile) {
                const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(tile, rows_.counts[row] - done));
                const std::int64_t position = rows_.starts[row] + done;
                list_.members.push_back({static_cast<std::int32_t>(row), count, token, position,
                                         chunk_of(first_seen(position, shape_.window)), chunk_of(position + count - 1), -1});
                token += count;
            }
        }
    }

    void add_whole(std::int32_t index) {
        const Member &member = list_.members[index];
        const auto at = static_cast<std::int32_t>(list_.order.size());
        list_.order.push_back(index);
        const std::int64_t cost = std::int64_t{member.count} * group_ * (member.last_chunk - member.first_chunk + 1);
        for (int head = 0; head < shape_.num_kv_heads; ++head)
            list_.works.push_back({at, at + 1, head, head + 1, member.first_chunk, member.last_chunk + 1, cost});
    }

    // One piece of work a chunk; members whose whole chunk lies in the same slots share it.
    void add_parted(const std::vector<std::int32_t> &parted) {
        int end = 0;
        std::int64_t pieces = 0;
        for (const std::int32_t index : parted) {
            const Member &member = list_.members[index];
            end = std::max(end, member.last_chunk + 1);
            pieces += member.last_chunk - member.first_chunk + 1;
        }
        // Reading all heads of a slot at once is reading memory in order.
        heads_together_ = pieces < std::int64_t{kWorksPerThread} * num_threads_ ? 1 : shape_.num_kv_heads;
        std::vector<std::int32_t> here;
        for (int chunk = 0; chunk < end; ++chunk) {
            here.clear();
            for (const std::int32_t index : parted)
                if (list_.members[index].first_chunk <= chunk && chunk <= list_.members[index].last_chunk) here.push_back(index);
            add_chunk(chunk, here);
        }
    }

    void add_chunk(int chunk, std::vector<std::int32_t> &here) {
        const auto alone = std::partition(here.begin(), here.end(), [&](std::int32_t index) { return covers(index, chunk); });
        std::sort(here.begin(), alone, [&](std::int32_t a, std::int32_t b) {
            const std::int32_t left = *slots(a, chunk), right = *slots(b, chunk);
            return left != right ? left < right : a < b;
        });
        auto first = here.begin();
        while (first != here.end()) {
            auto last = first + 1;
            std::int64_t stacked = std::int64_t{list_.members[*first].count} * group_;
            while (first < alone && last < alone && same_slots(*first, *last, chunk)) {
                stacked += std::int64_t{list_.members[*last].count} * group_;
                if (stacked > kTileRows) break;
                ++last;
            }
            add_parts(chunk, &*first, static_cast<int>(last - first));
            first = last;
        }
    }

    void add_parts(int chunk, const std::int32_t *members, int count) {
        const auto at = static_cast<std::int32_t>(list_.order.size());
        list_.order.insert(list_.order.end(), members, members + count);
        std::int64_t stacked = 0, end = 0;
        for (int i = 0; i < count; ++i) {
            const Member &member = list_.members[members[i]];
            stacked += std::int64_t{member.count} * group_;
            end = std::max(end, member.position + member.count);
        }
        const auto keys = std::min<std::int64_t>(end - std::int64_t{chunk} * kChunkKeys, kChunkKeys);
        const int fitting = static_cast<int>(std::max<std::int64_t>(1, kTileFloats / (stacked * list_.padded_dim)));
        const int together = std::min(heads_together_, fitting);
        for (int head = 0; head < shape_.num_kv_heads; head += together) {
            const int heads = std::min(together, shape_.num_kv_heads - head);
            // Reading and packing a key costs about as much as eight query rows do.
            list_.works.push_back({at, at + count, head, head + heads, chunk, chunk + 1, keys * heads * (stacked + 8) / kChunkKeys});
        }
    }

    bool covers(std::int32_t index, int chunk) const {
        const Member &member = list_.members[index];
        return rows_.starts[member.row] + rows_.counts[member.row] >= std::int64_t{chunk + 1} * kChunkKeys;
    }

    const std::int32_t *slots(std::int32_t index, int chunk) const {
        return rows_.page_table + list_.members[index].row * rows_.page_stride + std::int64_t{chunk} * kChunkKeys;
    }

    bool same_slots(std::int32_t a, std::int32_t b, int chunk) const {
        return std::memcmp(slots(a, chunk), slots(b, chunk), kChunkKeys * sizeof(std::int32_t)) == 0;
    }

    void place_partials() {
        const auto heads = static_cast<std::size_t>(shape_.num_kv_heads);
        list_.expected.assign(list_.members.size() * heads, 0);
        for (const Work &work : list_.works) {
            if (work.chunk_end - work.chunk_begin > 1) continue;
            for (int i = work.member_begin; i < work.member_end; ++i)
                for (int head = work.head_begin; head < work.head_end; ++head) ++list_.expected[list_.order[i] * heads + head];
        }
        list_.missing = std::make_unique<std::atomic<std::int32_t>[]>(list_.expected.size());
        std::int64_t size = 0;
        for (std::size_t i = 0; i < list_.members.size(); ++i) {
            Member &member = list_.members[i];
            if (list_.expected[i * heads] < 2) continue;
            member.partials = size;
            size += std::int64_t{list_.expected[i * heads]} * member.count * shape_.num_heads * list_.partial_size();
        }
        take_partials(list_, size);
        std::int64_t most = 0;
        for (const Work &work : list_.works) {
            std::int64_t stacked = 0;
            for (int i = work.member_begin; i < work.member_end; ++i) stacked += list_.members[list_.order[i]].count * group_;
            const std::int64_t padded = list_.padded_dim, all = stacked * (work.head_end - work.head_begin);
            most = std::max(most, all * (3 * padded + 4) + stacked * (kBlockKeys + 3) + kBlockKeys * (2 * padded + 10));
        }
        list_.scratch_floats = most + 15 * kLaneMultiple;  // each part begins at a multiple
    }

    const AttentionRows &rows_;
    const AttentionShape &shape_;
    const int group_;
    const int num_threads_;
    int heads_together_ = 1;
    WorkList &list_;
};

void check(const AttentionRows &rows, const AttentionShape &shape, std::int64_t num_slots) {
    if (shape.num_kv_heads < 1 || shape.num_heads < 1 || shape.num_heads % shape.num_kv_heads != 0)
        throw std::invalid_argument("[paged_attention] " + std::to_string(shape.num_kv_heads) + " K/V heads do not divide " +
                                    std::to_string(shape.num_heads) + " query heads");
    if (shape.head_dim < 1 || shape.head_dim > kMaxHeadDim)
        throw std::invalid_argument("[paged_attention] head_dim " + std::to_string(shape.head_dim) + " is outside [1, " +
                                    std::to_string(kMaxHeadDim) + "]");
    if (shape.window < 0) throw std::invalid_argument("[paged_attention] the window is negative");
    for (std::int64_t row = 0; row < rows.num_rows; ++row) {
        const std::int64_t end = rows.starts[row] + rows.counts[row];
        if (rows.starts[row] < 0 || rows.counts[row] < 0 || end > rows.page_stride)
            throw std::invalid_argument("[paged_attention] row " + std::to_string(row) + " does not fit the page table");
        const std::int32_t *slots = rows.page_table + row * rows.page_stride;
        std::int32_t least = 0, most = 0;
        for (std::int64_t i = 0; i < end; ++i) {
            least = std::min(least, slots[i]);
            most = std::max(most, slots[i]);
        }
        if (least < 0 || (end > 0 && most >= num_slots))
            throw std::invalid_argument("[paged_attention] row " + std::to_string(row) + " has slots outside [0, " +
                                        std::to_string(num_slots) + ")");
    }
}

}  // namespace

WorkList::~WorkList() {
    const std::lock_guard lock(spare_mutex);
    if (partials_size > spare_size) {
        spare = std::move(partials);
        spare_size = partials_size;
    }
}

AttentionPlan::AttentionPlan(const AttentionRows &rows, const AttentionShape &shape, std::int64_t num_slots, int num_threads)
    : rows_(rows), shape_(shape), work_(std::make_unique<WorkList>()) {
    check(rows, shape, num_slots);
    Planner(rows_, shape_, num_threads, *work_).plan();
}

AttentionPlan::~AttentionPlan() = default;
AttentionPlan::AttentionPlan(AttentionPlan &&) noexcept = default;
AttentionPlan &AttentionPlan::operator=(AttentionPlan &&) noexcept = default;

std::int64_t AttentionPlan::num_tokens() const {
    return work_->members.empty() ? 0 : work_->members.back().token + work_->members.back().count;
}

}  // namespace radixrt
