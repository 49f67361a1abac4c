// Random steps through paged attention against plain loops, built with sanitizers by scripts/test_native.
// Arguments: number of steps, seed.  Ends with 1 and a message when a result is off, or differs from that of its row alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "radixrt/attention.h"
#include "radixrt/cpu.h"
#include "radixrt/half.h"
#include "radixrt/thread_pool.h"

namespace {

using namespace radixrt;

constexpr int kSlots = 1500;

void expect(bool holds, const char *what) {
    if (!holds) throw std::runtime_error(what);
}

class Step {
public:
    Step(std::mt19937 &random, KVType type) : random_(random), type_(type) {
        shape_.num_kv_heads = 1 + below(3);
        shape_.num_heads = shape_.num_kv_heads * (1 + below(4));
        // Paths may serve whole vectors in another way.
        shape_.head_dim = below(2) == 0 ? 1 + below(70) : 16 * (1 + below(4));
        shape_.window = below(2) == 0 ? 0 : 1 + below(400);
        const std::size_t size = std::size_t{kSlots} * shape_.num_kv_heads * shape_.head_dim;
        const std::size_t width = type == KVType::f32 ? 4 : type == KVType::int8 ? 1 : 2;
        k_.resize(size * width);
        v_.resize(size * width);
        k_scale_.resize(std::size_t{kSlots} * shape_.num_kv_heads);
        v_scale_.resize(k_scale_.size());
        fill_pool(size);
        fill_rows();
    }

    void run(ThreadPool &threads) {
        const std::vector<float> found = attend(starts_, counts_, pages_, q_, threads);
        std::int64_t token = 0;
        for (std::size_t row = 0; row < starts_.size(); ++row) {
            const std::vector<std::int32_t> pages(pages_.begin() + row * kSlots, pages_.begin() + (row + 1) * kSlots);
            const std::int64_t width = std::int64_t{shape_.num_heads} * shape_.head_dim;
            const std::vector<float> q(q_.begin() + token * width, q_.begin() + (token + counts_[row]) * width);
            const std::vector<float> alone = attend({starts_[row]}, {counts_[row]}, pages, q, threads);
            expect(std::equal(alone.begin(), alone.end(), found.begin() + token * width), "a row alone has other bits");
            for (std::int64_t i = 0; i < counts_[row]; ++i, ++token) check(pages, starts_[row] + i, token, found);
        }
    }

private:
    int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
    float next() { return static_cast<float>(random_() >> 8) * 0x1p-23f - 1.0f; }

    KVLayer layer() {
        const bool scaled = type_ == KVType::int8;
        return {type_, k_.data(), v_.data(), scaled ? k_scale_.data() : nullptr, scaled ? v_scale_.data() : nullptr};
    }

    void fill_pool(std::size_t size) {
        std::vector<float> k(size), v(size);
        for (std::size_t i = 0; i < size; ++i) k[i] = next(), v[i] = next();
        std::vector<std::int64_t> slots(kSlots);
        std::iota(slots.begin(), slots.end(), 0);
        const std::int64_t stride = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
        ThreadPool alone(1);
        store_kv({layer(), k.data(), v.data(), stride, stride, slots.data(), kSlots, shape_.num_kv_heads, shape_.head_dim}, alone);
    }

    // Rows may share any prefix of their slots.
    void fill_rows() {
        std::vector<std::int32_t> order(kSlots);
        const int num_rows = 1 + below(6);
        std::int64_t tokens = 0;
        for (int row = 0; row < num_rows; ++row) {
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), random_);
            if (row > 0 && below(2) == 0) std::copy_n(pages_.begin() + below(row) * kSlots, below(900), order.begin());
            pages_.insert(pages_.end(), order.begin(), order.end());
            counts_.push_back(1 + (below(3) == 0 ? below(150) : below(4)));
            starts_.push_back(below(800));
            tokens += counts_.back();
        }
        q_.resize(static_cast<std::size_t>(tokens * shape_.num_heads * shape_.head_dim));
        for (float &value : q_) value = next();
    }

    std::vector<float> attend(const std::vector<std::int64_t> &starts, const std::vector<std::int64_t> &counts,
                              const std::vector<std::int32_t> &pages, const std::vector<float> &q, ThreadPool &threads) {
        const AttentionRows rows{pages.data(), kSlots, starts.data(), counts.data(), static_cast<std::int64_t>(starts.size())};
        const AttentionPlan plan(rows, shape_, kSlots, 1 + below(8));
        std::vector<float> out(q.size(), NAN);
        const std::int64_t width = std::int64_t{shape_.num_heads} * shape_.head_dim;
        paged_attention({&plan, layer(), q.data(), out.data(), width, width, 1.0f}, threads);
        return out;
    }

    float at(const std::vector<std::uint8_t> &part, const std::vector<float> &scales, std::int64_t slot, int head, int d) const {
        const std::size_t place = (slot * shape_.num_kv_heads + head) * shape_.head_dim + d;
        switch (type_) {
            case KVType::f32: return reinterpret_cast<const float *>(part.data())[place];
            case KVType::bf16: return float_of_bf16(reinterpret_cast<const std::uint16_t *>(part.data())[place]);
            case KVType::f16: return float_of_half(reinterpret_cast<const std::uint16_t *>(part.data())[place]);
            default: return static_cast<std::int8_t>(part[place]) * scales[slot * shape_.num_kv_heads + head];
        }
    }

    void check(const std::vector<std::int32_t> &pages, std::int64_t position, std::int64_t token, const std::vector<float> &found) const {
        const std::int64_t first = shape_.window > 0 ? std::max<std::int64_t>(0, position - shape_.window + 1) : 0;
        for (int head = 0; head < shape_.num_heads; ++head) {
            const int kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
            const std::size_t offset = (token * shape_.num_heads + head) * shape_.head_dim;
            std::vector<double> sums(shape_.head_dim);
            double total = 0.0;
            for (std::int64_t p = first; p <= position; ++p) {
                double score = 0.0;
                for (int d = 0; d < shape_.head_dim; ++d) score += double{q_[offset + d]} * at(k_, k_scale_, pages[p], kv_head, d);
                const double weight = std::exp(score);
                total += weight;
                for (int d = 0; d < shape_.head_dim; ++d) sums[d] += weight * at(v_, v_scale_, pages[p], kv_head, d);
            }
            for (int d = 0; d < shape_.head_dim; ++d)
                expect(std::fabs(found[offset + d] - sums[d] / total) < 0.03, "a result is off");  // operands may be rounded to bf16
        }
    }

    std::mt19937 &random_;
    const KVType type_;
    AttentionShape shape_{};
    std::vector<std::uint8_t> k_, v_;
    std::vector<float> k_scale_, v_scale_, q_;
    std::vector<std::int32_t> pages_;
    std::vector<std::int64_t> starts_, counts_;
};

}  // namespace

int main(int argc, char **argv) {
    const int steps = argc > 1 ? std::atoi(argv[1]) : 40;
    std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1u);
    ThreadPool threads(3);
    try {
        for (int step = 0; step < steps; ++step) Step(random, static_cast<KVType>(step % 4)).run(threads);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "attention_test: %s\n", error.what());
        return 1;
    }
    std::printf("attention_test: %d steps\n", steps);
    return rejected_paths().empty() ? 0 : 1;  // which says so itself
}
