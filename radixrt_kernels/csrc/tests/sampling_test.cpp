// Sampling and logprobs of random rows against plain loops over a sorted softmax in double.
#include <algorithm>
#include <numeric>

#include "check.h"
#include "radixrt/sampling.h"
#include "radixrt/thread_pool.h"

namespace {

using namespace radixrt;
using namespace radixrt::test;

struct Case {
    std::int64_t rows, size;
    std::vector<float> logits, temperature, top_p, min_p;
    std::vector<std::uint8_t> greedy;
    std::vector<std::int64_t> top_k;
    std::vector<double> uniform;
    std::vector<std::int32_t> mask;

    explicit Case(Random &random) : rows(1 + random.below(5)), size(1 + random.below(random.below(2) == 0 ? 40 : 1500)) {
        logits = random.numbers(rows * size, 8.0f);
        for (std::int64_t row = 0; row < rows; ++row) {
            greedy.push_back(random.below(4) == 0);
            temperature.push_back(0.3f + 1.5f * std::fabs(random.number()));
            top_k.push_back(random.below(2) == 0 ? std::int64_t{1} << 30 : 1 + random.below(20));
            top_p.push_back(random.below(2) == 0 ? 1.0f : std::fabs(random.number()));
            min_p.push_back(random.below(2) == 0 ? 0.0f : 0.3f * std::fabs(random.number()));
            uniform.push_back(0.5 + 0.5 * double{random.number()});
        }
        if (random.below(2) == 0) return;
        const std::int64_t words = (size + 31) / 32;
        for (std::int64_t i = 0; i < rows * words; ++i) mask.push_back(static_cast<std::int32_t>(random.below(std::int64_t{1} << 32)));
        for (std::int64_t row = 0; row < rows; ++row) mask[static_cast<std::size_t>(row * words)] |= 1;  // something stays allowed
    }

    bool allows(std::int64_t row, std::int64_t token) const {
        if (mask.empty()) return true;
        return (static_cast<std::uint32_t>(mask[static_cast<std::size_t>(row * ((size + 31) / 32) + token / 32)]) >> token % 32 & 1u) != 0;
    }

    std::vector<std::int64_t> sampled() {
        static ThreadPool threads(3);
        static_assert(sizeof(bool) == 1);
        std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows), -2);
        const LogitEdits none{nullptr, nullptr, nullptr, 0};
        sample({logits.data(), rows, size, reinterpret_cast<const bool *>(greedy.data()), temperature.data(), top_k.data(), top_p.data(),
                min_p.data(), uniform.data(), none, none, none, mask.empty() ? nullptr : mask.data(), tokens.data()},
               threads);
        return tokens;
    }
};

// The token drawn must be one whose interval lies within the error of the weights of the uniform number.
void check_row(const Case &given, const std::vector<float> &logits, std::int64_t row, std::int64_t token) {
    const auto at = [&](std::int64_t i) { return double{logits[static_cast<std::size_t>(row * given.size + i)]}; };
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < given.size; ++i)
        if (given.allows(row, i)) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return at(a) > at(b); });
    const auto r = static_cast<std::size_t>(row);
    if (given.greedy[r]) return expect(token == order[0], "not the first of the largest");
    const double best = at(order[0]);
    const auto weight = [&](std::int64_t i) { return std::exp((at(i) - best) / double{given.temperature[r]}); };
    double total = 0.0;
    for (const std::int64_t i : order) total += weight(i);
    const bool filtered = given.top_k[r] < given.size || given.top_p[r] < 1.0f || given.min_p[r] > 0.0f;
    if (filtered) {
        const double error = 1e-5 * total, mass = given.top_p[r] < 1.0f ? given.top_p[r] * total : 2 * total;
        double before = 0.0;
        std::size_t kept = 0;
        // Generous at the borders: a token there may be in or out.
        while (kept < order.size() && static_cast<std::int64_t>(kept) < given.top_k[r] && before < mass + error && weight(order[kept]) >= given.min_p[r] * (1 - 1e-5))
            before += weight(order[kept++]);
        const auto found = std::find(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), token);
        expect(found != order.begin() + static_cast<std::ptrdiff_t>(kept), "a token that the filters forbid");
        if (given.top_p[r] < 1.0f || given.min_p[r] > 0.0f) return;
        total = before;
    } else {
        std::sort(order.begin(), order.end());
    }
    double before = 0.0;
    for (const std::int64_t i : order) {
        if (i == token) return expect(before - 1e-5 * total <= given.uniform[r] * total && given.uniform[r] * total <= before + weight(i) + 1e-5 * total, "another token was due");
        before += weight(i);
    }
    expect(false, "a token that the mask forbids");
}

void check_logprobs(Random &random, const Case &given, const std::vector<float> &logits) {
    ThreadPool threads(1);
    const std::int64_t top = random.below(std::min<std::int64_t>(given.size, 20) + 1);
    const auto rows = static_cast<std::size_t>(given.rows);
    std::vector<std::int64_t> chosen(rows), asked(rows), ids(rows * static_cast<std::size_t>(top));
    for (std::size_t row = 0; row < rows; ++row) chosen[row] = random.below(given.size), asked[row] = random.below(given.size + 1) - 1;
    std::vector<float> of_chosen(rows), of_asked(rows), of_top(ids.size());
    logprobs_of({logits.data(), given.rows, given.size, chosen.data(), top, asked.data(), 1, of_chosen.data(), of_top.data(), ids.data(), of_asked.data()}, threads);
    for (std::size_t row = 0; row < rows; ++row) {
        const float *x = logits.data() + row * static_cast<std::size_t>(given.size);
        const double best = *std::max_element(x, x + given.size);
        double total = 0.0;
        for (std::int64_t i = 0; i < given.size; ++i) total += std::exp(x[i] - best);
        const auto logprob = [&](std::int64_t token) { return x[std::max<std::int64_t>(token, 0)] - best - std::log(total); };
        expect(near(of_chosen[row], logprob(chosen[row]), 1e-4) && near(of_asked[row], logprob(asked[row]), 1e-4), "a logprob is off");
        std::vector<std::int64_t> order(static_cast<std::size_t>(given.size));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return x[a] > x[b]; });
        for (std::int64_t i = 0; i < top; ++i) {
            const std::size_t place = row * static_cast<std::size_t>(top) + static_cast<std::size_t>(i);
            expect(ids[place] == order[static_cast<std::size_t>(i)] && near(of_top[place], logprob(ids[place]), 1e-4), "a likely token is off");
        }
    }
}

void trial(Random &random) {
    Case given(random);
    const std::vector<float> logits = given.logits;
    check_logprobs(random, given, logits);
    const std::vector<std::int64_t> tokens = given.sampled();
    for (std::int64_t row = 0; row < given.rows; ++row) check_row(given, logits, row, tokens[static_cast<std::size_t>(row)]);
    given.logits = logits;
    given.logits[static_cast<std::size_t>(random.below(given.size))] = NAN;
    if (given.mask.empty()) expect(given.sampled()[0] == -1, "a row with NaN has a token");
}

}  // namespace

int main(int argc, char **argv) { return run_trials("sampling_test", argc, argv, 300, trial); }
