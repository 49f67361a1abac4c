// Every path of every op against the portable one, to the bit.  Where one order of operations is promised for all instruction sets
// that holds always; elsewhere if the portable path was compiled with fused multiplications, as scripts/test_native does for this test.
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "check.h"
#include "radixrt/attention_plan.h"
#include "radixrt/cpu.h"
#include "radixrt/linear.h"
#include "radixrt/sampling.h"

namespace {

using namespace radixrt;
using namespace radixrt::test;

ThreadPool &threads() {
    static ThreadPool alone(1);
    return alone;
}

// Bits, so that the zeros and NaNs of both kinds count.
template <class T>
bool same(const std::vector<T> &left, const std::vector<T> &right) {
    return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

// What an op gives on each instruction set of this machine, narrowest first.
template <class Op>
auto on_each(Op op) {
    std::vector<decltype(op())> results;
    for (int level = 0; level <= static_cast<int>(detected_isa()); ++level) {
        set_cpu_isa(static_cast<Isa>(level));
        results.push_back(op());
    }
    return results;
}

template <class Result>
void expect_same(const std::vector<Result> &results, std::size_t from, const char *what) {
    for (std::size_t level = from + 1; level < results.size(); ++level)
        expect(same(results[level], results[from]), std::string(what) + " differs on " + isa_name(static_cast<Isa>(level)));
}

// Numbers of many sizes, of either sign.
std::vector<float> wide_numbers(Random &random, std::int64_t count) {
    std::vector<float> made = random.numbers(count);
    for (float &value : made) value = std::ldexp(value, static_cast<int>(random.below(20)) - 10);
    return made;
}

// Blocks as a file may have them: any numbers, any finite d and m, subnormal ones too.
std::vector<std::uint8_t> blocks_of(Random &random, WeightType type, std::int64_t count) {
    const std::size_t size = stored_block_bytes(type);
    std::vector<std::uint8_t> blocks(size * static_cast<std::size_t>(count));
    for (std::uint8_t &byte : blocks) byte = static_cast<std::uint8_t>(random.below(256));
    for (std::size_t block = 0; block < blocks.size(); block += size)
        for (std::size_t half = 0; half < (type == WeightType::q4_1 ? 2u : 1u); ++half) blocks[block + 2 * half + 1] &= 0xBFu;
    return blocks;
}

void try_quantized(Random &random) {
    const WeightType type = std::vector{WeightType::q8_0, WeightType::q4_0, WeightType::q4_1}[static_cast<std::size_t>(random.below(3))];
    const std::int64_t rows = 1 + random.below(40), blocks = 1 + random.below(9), tokens = 1 + random.below(2 * kTokenTile + 2);
    PackedMatrix matrix(type, rows, blocks * kBlock);
    matrix.pack(0, blocks_of(random, type, rows * blocks));
    std::vector<float> x = wide_numbers(random, tokens * blocks * kBlock);
    // The largest magnitudes everywhere: no sum may run over.
    if (random.below(4) == 0)
        for (float &value : x) value = value < 0.0f ? -1.0f : 1.0f;
    expect_same(on_each([&] {
                    QuantizedBuffer buffer;
                    const QuantizedRows in = buffer.rows(tokens, matrix.cols());
                    for (std::int64_t token = 0; token < tokens; ++token)
                        activation_path().quantize(x.data() + token * matrix.cols(), matrix.cols(), in, token);
                    std::vector<float> y(static_cast<std::size_t>(tokens * rows));
                    const LinearOutput out{&matrix, nullptr, y.data(), rows, 0, false};
                    linear(nullptr, in, tokens, std::span(&out, 1), threads());
                    return y;
                }),
                0, weight_type_name(type));
}

// Sums are fused on all but the portable path.
void try_floats(Random &random) {
    const WeightType type = random.below(2) == 0 ? WeightType::f32 : WeightType::bf16;
    const std::int64_t rows = 1 + random.below(40), cols = 1 + random.below(150), tokens = 1 + random.below(kTokenTile + 2);
    PackedMatrix matrix(type, rows, cols);
    matrix.pack_floats(0, random.numbers(rows * cols));
    const std::vector<float> x = random.numbers(tokens * cols);
    const auto results = on_each([&] {
        std::vector<float> y(static_cast<std::size_t>(tokens * rows));
        const LinearOutput out{&matrix, nullptr, y.data(), rows, 0, false};
        linear(x.data(), {}, tokens, std::span(&out, 1), threads());
        return y;
    });
    if (results.size() > 1) expect_same(results, 1, weight_type_name(type));
    for (std::size_t i = 0; i < results[0].size(); ++i)
        expect(near(results.back()[i], results[0][i], 1e-6 * static_cast<double>(cols)), "a sum is off");
}

void try_activations(Random &random) {
    const std::int64_t blocks = 1 + random.below(7), size = 1 + random.below(200), heads = 1 + random.below(4), half = 1 + random.below(20);
    std::vector<float> x = wide_numbers(random, blocks * kBlock);
    const float special[] = {INFINITY, NAN, 0x1p-140f, -0.0f, 1e38f, 1e-30f};
    for (std::int64_t i = random.below(3); i > 0; --i) x[static_cast<std::size_t>(random.below(blocks * kBlock))] = special[random.below(6)];
    const std::vector<float> gate = wide_numbers(random, size), up = wide_numbers(random, size);
    const std::vector<float> head = wide_numbers(random, heads * 2 * half), turn = random.numbers(2 * half);
    const auto activation = static_cast<Activation>(random.below(4));
    expect_same(on_each([&] {
                    QuantizedBuffer buffer;
                    const QuantizedRows rows = buffer.rows(1, blocks * kBlock);
                    activation_path().quantize(x.data(), blocks * kBlock, rows, 0);
                    std::vector<float> out(rows.numbers, rows.numbers + blocks * kBlock);
                    out.insert(out.end(), rows.scales, rows.scales + blocks);
                    out.insert(out.end(), rows.sums, rows.sums + blocks);
                    return out;
                }),
                0, "rounding");
    expect_same(on_each([&] {
                    std::vector<float> out = head;
                    out.resize(out.size() + 2 * static_cast<std::size_t>(size));
                    activation_path().rope(out.data(), heads, 2 * half, turn.data(), turn.data() + half, half);
                    float *rest = out.data() + head.size();
                    activation_path().rms_norm(gate.data(), up.data(), 1e-5f, size, rest);
                    activation_path().gated(activation, gate.data(), up.data(), size, rest + size);
                    return out;
                }),
                0, "norm, gate or rotation");
}

void try_sampling(Random &random) {
    const std::int64_t size = 1 + random.below(random.below(2) == 0 ? 40 : 1500), top = random.below(std::min<std::int64_t>(size, 20) + 1);
    std::vector<float> logits = random.numbers(size, 12.0f);
    if (random.below(3) == 0) logits[static_cast<std::size_t>(random.below(size))] = random.below(2) == 0 ? -INFINITY : NAN;
    const float temperature = 0.3f + 1.5f * std::fabs(random.number()), top_p = random.below(2) == 0 ? 1.0f : std::fabs(random.number());
    const std::int64_t top_k = random.below(2) == 0 ? size : 1 + random.below(20), given = random.below(size);
    const float min_p = random.below(2) == 0 ? 0.0f : 0.3f * std::fabs(random.number());
    const bool greedy = random.below(4) == 0;
    const double uniform = 0.5 + 0.5 * double{random.number()};
    expect_same(on_each([&] {
                    const LogitEdits none{nullptr, nullptr, nullptr, 0};
                    std::vector<float> row = logits, out(static_cast<std::size_t>(2 + top));
                    std::vector<std::int64_t> token(1), ids(static_cast<std::size_t>(top));
                    logprobs_of({logits.data(), 1, size, &given, top, &given, 1, out.data(), out.data() + 2, ids.data(), out.data() + 1}, threads());
                    sample({row.data(), 1, size, &greedy, &temperature, &top_k, &top_p, &min_p, &uniform, none, none, none, nullptr, token.data()},
                           threads());
                    for (const std::int64_t id : ids) out.push_back(static_cast<float>(id));
                    out.push_back(static_cast<float>(token[0]));
                    for (float &value : out) value = value == value ? value : NAN;  // whichever NaN
                    return out;
                }),
                0, "a token or logprob");
}

void try_attention(Random &random) {
    constexpr int kSlots = 700;
    const auto type = static_cast<KVType>(random.below(4));
    AttentionShape shape{};
    shape.num_kv_heads = 1 + static_cast<int>(random.below(2));
    shape.num_heads = shape.num_kv_heads * (1 + static_cast<int>(random.below(4)));
    shape.head_dim = 1 + static_cast<int>(random.below(90));
    shape.window = random.below(2) == 0 ? 0 : 1 + static_cast<int>(random.below(300));
    const std::int64_t stride = std::int64_t{shape.num_kv_heads} * shape.head_dim, size = kSlots * stride;
    const int bytes = type == KVType::f32 ? 4 : type == KVType::int8 ? 1 : 2;
    std::vector<std::uint8_t> k(static_cast<std::size_t>(size * bytes)), v(k.size());
    std::vector<float> k_scale(static_cast<std::size_t>(kSlots * shape.num_kv_heads)), v_scale(k_scale.size());
    const KVLayer layer{type, k.data(), v.data(), type == KVType::int8 ? k_scale.data() : nullptr, type == KVType::int8 ? v_scale.data() : nullptr};
    std::vector<std::int64_t> slots(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    const std::vector<float> k_numbers = random.numbers(size), v_numbers = random.numbers(size);
    store_kv({layer, k_numbers.data(), v_numbers.data(), stride, stride, slots.data(), kSlots, shape.num_kv_heads, shape.head_dim}, threads());

    const std::vector<std::int64_t> starts{random.below(600), random.below(600), 0};
    const std::vector<std::int64_t> counts{1 + random.below(4), 1, 1 + random.below(90)};
    std::vector<std::int32_t> pages(3 * kSlots);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i % kSlots * 11 % kSlots);
    const std::int64_t width = std::int64_t{shape.num_heads} * shape.head_dim, tokens = counts[0] + counts[1] + counts[2];
    const std::vector<float> q = random.numbers(tokens * width, 3.0f);
    const AttentionRows rows{pages.data(), kSlots, starts.data(), counts.data(), 3};
    const AttentionPlan plan(rows, shape, kSlots, 1);
    const auto attend = [&](auto attention) {
        std::vector<float> out(q.size());
        attention({&plan, layer, q.data(), out.data(), width, width, 0.3f}, threads());
        return out;
    };
    auto results = on_each([&] { return attend(paged_attention); });
#if defined(__x86_64__)
    if (static_cast<Isa>(results.size() - 1) == Isa::avx512 && (type == KVType::bf16 || type == KVType::int8)) {
        expect(same(results.back(), attend(paged_attention_in_pairs)), "attention in pairs differs");
        results.pop_back();
    }
#endif
    expect_same(results, 0, "attention");
}

void trial(Random &random) {
    try_quantized(random);
    try_floats(random);
    try_activations(random);
    try_sampling(random);
    try_attention(random);
}

}  // namespace

int main(int argc, char **argv) { return run_trials("paths_test", argc, argv, 60, trial); }
