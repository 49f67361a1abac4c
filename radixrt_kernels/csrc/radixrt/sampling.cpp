#include "radixrt/sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "radixrt/cpu.h"
#include "radixrt/sampling_paths.h"
#include "radixrt/thread_pool.h"

namespace radixrt {

namespace {

constexpr double kLog2E = 1.4426950408889634;

bool agrees(const SamplingPaths &path, const SamplingPaths &portable) {
    constexpr std::int64_t count = 1000;
    std::vector<float> x(count), weights[2];
    std::uint32_t noise = 1;
    for (float &value : x) value = static_cast<float>((noise = noise * 1664525u + 1013904223u) >> 8) * 0x1p-20f;
    x[77] = -std::numeric_limits<float>::infinity();
    const float best = portable.largest(x.data(), count);
    if (path.largest(x.data(), count) != best) return false;
    std::vector<std::int32_t> places[2];
    double sums[2];
    const SamplingPaths *both[] = {&path, &portable};
    for (int i = 0; i < 2; ++i) {
        weights[i].resize(count);
        std::vector<double> blocks((count + kSumBlock - 1) / kSumBlock);
        sums[i] = both[i]->weigh(x.data(), count, best, 0.5f, weights[i].data(), blocks.data());
        places[i].resize(count);
        places[i].resize(static_cast<std::size_t>(both[i]->select(x.data(), count, 0.5f * best, places[i].data(), count)));
    }
    for (std::int64_t i = 0; i < count; ++i)
        if (!(std::fabs(weights[0][i] - weights[1][i]) <= 1e-6f * weights[1][i])) return false;
    return places[0] == places[1] && std::fabs(sums[0] - sums[1]) <= 1e-6 * sums[1] &&
           path.first_at_least(x.data(), count, best) == portable.first_at_least(x.data(), count, best);
}

const SamplingPaths &paths() {
#if defined(__x86_64__)
    static Paths<SamplingPaths> all("sampling", sampling_portable, &sampling_avx2, &sampling_avx512, agrees);
#elif defined(__aarch64__)
    static Paths<SamplingPaths> all("sampling", sampling_portable, &sampling_neon, nullptr, agrees);
#else
    static Paths<SamplingPaths> all("sampling", sampling_portable, nullptr, nullptr, agrees);
#endif
    return all();
}

// Vectors of one thread, which keep their memory.
struct Workspace {
    std::vector<float> weights;
    std::vector<double> sums;
    std::vector<std::int32_t> places;
};
thread_local Workspace workspace;

class Row {
public:
    Row(const SamplingArgs &args, const SamplingPaths &row_paths, std::int64_t row)
        : args_(args), paths_(row_paths), row_(row), size_(args.vocab_size), logits_(args.logits + row * args.vocab_size) {}

    std::int64_t sample() {
        if (args_.mask != nullptr) forbid();
        const float best = paths_.largest(logits_, size_);
        if (!std::isfinite(best)) return -1;
        if (args_.greedy[row_]) return paths_.first_at_least(logits_, size_, best);
        return draw(best);
    }

private:
    void forbid() {
        constexpr std::int64_t bits = 32;
        const std::int64_t words = (size_ + bits - 1) / bits;
        const std::int32_t *mask = args_.mask + row_ * words;
        for (std::int64_t word = 0; word < words; ++word) {
            const auto allowed = static_cast<std::uint32_t>(mask[word]);
            if (allowed == 0xFFFFFFFFu) continue;
            float *at = logits_ + word * bits;
            const std::int64_t here = std::min(bits, size_ - word * bits);
            if (allowed == 0) {
                std::fill_n(at, here, -std::numeric_limits<float>::infinity());
                continue;
            }
            for (std::int64_t bit = 0; bit < here; ++bit)
                at[bit] = (allowed >> bit & 1u) != 0 ? at[bit] : -std::numeric_limits<float>::infinity();
        }
    }

    std::int64_t draw(float best) {
        Workspace &space = workspace;
        space.weights.resize(static_cast<std::size_t>(size_));
        space.sums.resize(static_cast<std::size_t>((size_ + kSumBlock - 1) / kSumBlock));
        // A temperature near 0 leaves the best alone: 0 x the largest float is 0, and anything else below 2^-128.
        const auto factor = static_cast<float>(std::min<double>(kLog2E / args_.temperature[row_], FLT_MAX));
        const double total = paths_.weigh(logits_, size_, best, factor, space.weights.data(), space.sums.data());
        const bool filtered = args_.top_k[row_] < size_ || args_.top_p[row_] < 1.0f || args_.min_p[row_] > 0.0f;
        return filtered ? draw_likely(total) : draw_any(total);
    }

    // The first token whose cumulative weight, in the order of ids, exceeds uniform x total.
    std::int64_t draw_any(double total) const {
        const double target = args_.uniform[row_] * total;
        const std::vector<double> &sums = workspace.sums;
        double before = 0.0;
        std::size_t block = 0;
        while (block + 1 < sums.size() && !(before + sums[block] > target)) before += sums[block++];
        const std::int64_t begin = static_cast<std::int64_t>(block) * kSumBlock, end = std::min(begin + kSumBlock, size_);
        std::int64_t last = begin;
        for (std::int64_t i = begin; i < end; ++i) {
            const float weight = workspace.weights[i];
            before += weight;
            if (weight > 0.0f) last = i;
            if (before > target) return i;
        }
        return last;  // sums of a block are rounded differently
    }

    // The same among the likely tokens that the filters leave, in the order of weights.
    std::int64_t draw_likely(double total) const {
        const std::int64_t top_k = args_.top_k[row_];
        const bool by_mass = args_.top_p[row_] < 1.0f;
        const double mass = by_mass ? args_.top_p[row_] * total : std::numeric_limits<double>::infinity();
        const std::vector<std::int32_t> &likely = find_likely(mass);
        double before = 0.0;
        std::size_t kept = 0;
        while (kept < likely.size() && static_cast<std::int64_t>(kept) < top_k && before < mass && weight(likely[kept]) >= args_.min_p[row_])
            before += weight(likely[kept++]);
        const double target = args_.uniform[row_] * before;
        double cumulative = 0.0;
        for (std::size_t i = 0; i < kept; ++i) {
            cumulative += weight(likely[i]);
            if (cumulative > target) return likely[i];
        }
        return likely[kept > 0 ? kept - 1 : 0];
    }

    // The tokens that can pass all filters, largest weight first, ties by id.  The best token's weight is 1.
    std::vector<std::int32_t> &find_likely(double mass) const {
        std::vector<std::int32_t> &places = workspace.places;
        const std::int64_t top_k = args_.top_k[row_];
        const float min_p = args_.min_p[row_];
        places.resize(static_cast<std::size_t>(size_));
        std::int64_t count = 0;
        for (float bound = 0x1p-4f; ; bound = bound > 0x1p-20f ? bound * 0x1p-4f : std::numeric_limits<float>::denorm_min()) {
            count = paths_.select(workspace.weights.data(), size_, std::max(bound, min_p), places.data(), size_);
            if (count >= top_k || min_p >= bound || bound < 0x1p-24f) break;
            double sum = 0.0;
            for (std::int64_t i = 0; i < count; ++i) sum += weight(places[i]);
            if (sum >= mass) break;
        }
        const auto more = [&](std::int32_t a, std::int32_t b) { return weight(a) != weight(b) ? weight(a) > weight(b) : a < b; };
        places.resize(static_cast<std::size_t>(count));
        if (count > top_k) {
            std::nth_element(places.begin(), places.begin() + top_k, places.end(), more);
            places.resize(static_cast<std::size_t>(top_k));
        }
        std::sort(places.begin(), places.end(), more);
        return places;
    }

    float weight(std::int32_t place) const { return workspace.weights[place]; }

    const SamplingArgs &args_;
    const SamplingPaths &paths_;
    const std::int64_t row_;
    const std::int64_t size_;
    float *const logits_;
};

template <class Change>
void edit(const SamplingArgs &args, const LogitEdits &edits, Change change) {
    for (std::int64_t i = 0; i < edits.count; ++i) {
        float &logit = args.logits[edits.rows[i] * args.vocab_size + edits.tokens[i]];
        logit = change(logit, edits.values[i]);
    }
}

void report(const LogprobArgs &args, const SamplingPaths &row_paths, std::int64_t row) {
    Workspace &space = workspace;
    const float *logits = args.logits + row * args.vocab_size;
    const float best = row_paths.largest(logits, args.vocab_size);
    space.weights.resize(static_cast<std::size_t>(args.vocab_size));
    space.sums.resize(static_cast<std::size_t>((args.vocab_size + kSumBlock - 1) / kSumBlock));
    const double total =
        row_paths.weigh(logits, args.vocab_size, best, static_cast<float>(kLog2E), space.weights.data(), space.sums.data());
    const auto normaliser = static_cast<float>(best + std::log(total));
    const auto logprob = [&](std::int64_t token) { return logits[std::max<std::int64_t>(token, 0)] - normaliser; };
    args.chosen_logprobs[row] = logprob(args.chosen[row]);
    for (std::int64_t i = 0; i < args.num_given; ++i)
        args.given_logprobs[row * args.num_given + i] = logprob(args.given[row * args.num_given + i]);
    if (args.num_top == 0) return;
    std::vector<std::int32_t> &places = space.places;
    places.resize(static_cast<std::size_t>(args.vocab_size));
    std::int64_t count = 0;
    for (float width = 4.0f; count < args.num_top; width *= 4.0f) {
        // NaN compares with nothing: all tokens are taken once the bound is below every number.
        const bool everything = !(width < 4096.0f);
        if (everything)
            for (count = 0; count < args.vocab_size; ++count) places[count] = static_cast<std::int32_t>(count);
        else
            count = row_paths.select(logits, args.vocab_size, best - width, places.data(), args.vocab_size);
    }
    const auto more = [&](std::int32_t a, std::int32_t b) {
        const bool a_counts = logits[a] == logits[a], b_counts = logits[b] == logits[b];
        if (!a_counts || !b_counts) return a_counts != b_counts ? b_counts : a < b;
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    std::partial_sort(places.begin(), places.begin() + args.num_top, places.begin() + count, more);
    for (std::int64_t i = 0; i < args.num_top; ++i) {
        args.top_ids[row * args.num_top + i] = places[i];
        args.top_logprobs[row * args.num_top + i] = logprob(places[i]);
    }
}

}  // namespace

void sample(const SamplingArgs &args, ThreadPool &threads) {
    edit(args, args.penalties, [](float logit, float value) { return logit + value; });
    edit(args, args.repetition, [](float logit, float value) { return logit > 0.0f ? logit / value : logit * value; });
    // What the mask forbids stays so whatever is added, so that it may come last.
    edit(args, args.bias, [](float logit, float value) { return logit + value; });
    const SamplingPaths &row_paths = paths();
    threads.run(static_cast<int>(args.num_rows), [&](int row) { args.tokens[row] = Row(args, row_paths, row).sample(); });
}

void logprobs_of(const LogprobArgs &args, ThreadPool &threads) {
    const SamplingPaths &row_paths = paths();
    threads.run(static_cast<int>(args.num_rows), [&](int row) { report(args, row_paths, row); });
}

}  // namespace radixrt
