// Small random decoders: with float32 weights against a plain forward pass in double, with weights of any type whole against in parts.
#include <memory>
#include <numeric>

#include "check.h"
#include "radixrt/decoder.h"

namespace {

using namespace radixrt;
using namespace radixrt::test;
using Row = std::vector<double>;

constexpr std::int64_t kVocab = 37, kLength = 24, kSlots = 40;

struct Model {
    DecoderShape shape{};
    std::vector<DecoderLayer> layers;
    std::vector<float> final_norm;
    std::shared_ptr<const PackedMatrix> embedding, head;
    std::vector<float> turns;  // [position][cosines, sines]

    Model(Random &random, bool plain) {
        const std::int64_t kv_heads = 1 + random.below(2);
        shape = {kBlock * (1 + random.below(2)), kBlock * (1 + random.below(3)), kv_heads * (1 + random.below(3)), kv_heads, kBlock, 0, 1e-5f,
                 static_cast<Activation>(random.below(4))};
        shape.rotary_dim = 2 * (1 + random.below(shape.head_dim / 2));
        const auto type = [&] { return plain ? WeightType::f32 : static_cast<WeightType>(random.below(5)); };
        const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
            auto made = std::make_shared<PackedMatrix>(type(), rows, cols);
            made->pack_floats(0, random.numbers(rows * cols, 0.4f));
            return made;
        };
        const auto linear = [&](std::int64_t rows, std::int64_t cols) {
            return DecoderLinear{matrix(rows, cols), random.below(2) == 0 ? std::vector<float>{} : random.numbers(rows, 0.2f)};
        };
        const std::int64_t hidden = shape.hidden_size, q = shape.num_heads * kBlock, kv = kv_heads * kBlock, inner = shape.intermediate_size;
        const bool head_norms = random.below(2) == 0;
        for (std::int64_t i = 1 + random.below(2); i > 0; --i)
            layers.push_back({random.numbers(hidden), random.numbers(hidden), head_norms ? random.numbers(kBlock) : std::vector<float>{},
                              head_norms ? random.numbers(kBlock) : std::vector<float>{}, linear(q, hidden), linear(kv, hidden),
                              linear(kv, hidden), linear(hidden, q), linear(inner, hidden), linear(inner, hidden), linear(hidden, inner)});
        final_norm = random.numbers(hidden);
        embedding = matrix(kVocab, hidden);
        head = random.below(2) == 0 ? embedding : matrix(kVocab, hidden);
        for (std::int64_t position = 0; position < kLength; ++position)
            for (int part = 0; part < 2; ++part)
                for (std::int64_t i = 0; i < shape.rotary_dim / 2; ++i) {
                    const double angle = static_cast<double>(position) / (1.0 + static_cast<double>(i));
                    turns.push_back(static_cast<float>(part == 0 ? std::cos(angle) : std::sin(angle)));
                }
    }
};

// Logits of one text, computed in steps that end at the given lengths; those of tokens of which ``chooser``, if any, wants nothing, NaN.
std::vector<float> decoded(const Model &model, const std::vector<std::int64_t> &ids, const std::vector<std::int64_t> &ends,
                           const std::vector<std::int32_t> &pages, int num_threads, Random *chooser = nullptr) {
    ThreadPool threads(num_threads);
    Decoder decoder(model.shape, model.layers, model.final_norm, model.embedding, model.head);
    const std::int64_t size = kSlots * model.shape.num_kv_heads * model.shape.head_dim;
    std::vector<std::vector<float>> pool(2 * model.layers.size(), std::vector<float>(static_cast<std::size_t>(size), NAN));
    KVStorage storage{{}, kSlots, static_cast<int>(model.shape.num_kv_heads), static_cast<int>(model.shape.head_dim)};
    for (std::size_t i = 0; i < model.layers.size(); ++i)
        storage.layers.push_back({KVType::f32, pool[2 * i].data(), pool[2 * i + 1].data(), nullptr, nullptr});
    std::vector<float> logits;
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
        const std::int64_t count = end - begin;
        std::vector<std::int64_t> positions(static_cast<std::size_t>(count)), slots(pages.begin() + begin, pages.begin() + end);
        std::iota(positions.begin(), positions.end(), begin);
        const AttentionRows rows{pages.data(), kSlots, &begin, &count, 1};
        const AttentionPlan plan(rows, {static_cast<int>(model.shape.num_heads), storage.num_kv_heads, storage.head_dim, 0}, kSlots, num_threads);
        const std::vector<const AttentionPlan *> plans(model.layers.size(), &plan);
        std::vector<float> x(static_cast<std::size_t>(count * model.shape.hidden_size)), out(static_cast<std::size_t>(count * kVocab), NAN);
        DecoderStep step{std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)), positions, slots,
                         {model.turns.data(), kLength}, &storage, plans};
        const std::int64_t wanted = chooser == nullptr ? count : chooser->below(static_cast<int>(count) + 1), first = end - wanted;
        std::vector<std::int64_t> places(static_cast<std::size_t>(wanted));
        std::iota(places.begin(), places.end(), count - wanted);
        std::unique_ptr<AttentionPlan> last;
        if (wanted > 0) last = std::make_unique<AttentionPlan>(AttentionRows{pages.data(), kSlots, &first, &wanted, 1}, plan.shape(), kSlots, num_threads);
        if (chooser != nullptr) step.wanted = {places, last.get()};
        decoder.forward(step, x.data(), threads);
        decoder.logits(x.data(), wanted, out.data() + (count - wanted) * kVocab, threads);
        logits.insert(logits.end(), out.begin(), out.end());
        begin = end;
    }
    return logits;
}

// The plain forward pass, one position after the other.
class Plain {
public:
    explicit Plain(const Model &model) : model_(model), keys_(model.layers.size()), values_(model.layers.size()) {}

    Row logits(std::int64_t id, std::int64_t position) {
        Row x = row_of(*model_.embedding, id);
        for (std::size_t i = 0; i < model_.layers.size(); ++i) {
            const DecoderLayer &layer = model_.layers[i];
            add(x, product(layer.output, attended(i, norm(x, layer.attention_norm), position)));
            const Row in = norm(x, layer.mlp_norm);
            Row gate = product(layer.gate, in);
            const Row up = product(layer.up, in);
            for (std::size_t j = 0; j < gate.size(); ++j) gate[j] = activated(gate[j]) * up[j];
            add(x, product(layer.down, gate));
        }
        return product({model_.head, {}}, norm(x, model_.final_norm));
    }

private:
    static Row row_of(const PackedMatrix &matrix, std::int64_t index) {
        std::vector<float> row(static_cast<std::size_t>(matrix.cols()));
        matrix.unpack_row(index, row.data());
        return {row.begin(), row.end()};
    }

    static Row product(const DecoderLinear &linear, const Row &x) {
        Row out;
        for (std::int64_t r = 0; r < linear.matrix->rows(); ++r) {
            const Row weights = row_of(*linear.matrix, r);
            const double bias = linear.bias.empty() ? 0.0 : linear.bias[static_cast<std::size_t>(r)];
            out.push_back(std::inner_product(weights.begin(), weights.end(), x.begin(), bias));
        }
        return out;
    }

    static void add(Row &x, const Row &more) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    }

    Row norm(const Row &x, const std::vector<float> &weight) const {
        const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
        Row out = x;
        for (std::size_t i = 0; i < x.size(); ++i)
            out[i] *= weight[i] / std::sqrt(squares / static_cast<double>(x.size()) + double{model_.shape.rms_norm_eps});
        return out;
    }

    double activated(double x) const {
        switch (model_.shape.activation) {
            case Activation::silu: return x / (1.0 + std::exp(-x));
            case Activation::gelu: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
            case Activation::gelu_tanh: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
            default: return std::fmax(x, 0.0);
        }
    }

    std::vector<Row> heads(const DecoderLinear &linear, const Row &x, const std::vector<float> &weight, std::int64_t position) const {
        const Row all = product(linear, x);
        std::vector<Row> out;
        for (auto at = all.begin(); at != all.end(); at += kBlock) {
            Row head(at, at + kBlock);
            if (!weight.empty()) head = norm(head, weight);
            const std::int64_t half = model_.shape.rotary_dim / 2;
            const float *cos = model_.turns.data() + position * 2 * half, *sin = cos + half;
            for (std::int64_t i = 0; i < half; ++i) {
                double &first = head[static_cast<std::size_t>(i)], &second = head[static_cast<std::size_t>(i + half)];
                const double turned = first * cos[i] - second * sin[i];
                second = second * cos[i] + first * sin[i];
                first = turned;
            }
            out.push_back(std::move(head));
        }
        return out;
    }

    Row attended(std::size_t index, const Row &x, std::int64_t position) {
        const DecoderLayer &layer = model_.layers[index];
        const std::vector<Row> queries = heads(layer.q, x, layer.q_norm, position);
        keys_[index].push_back(heads(layer.k, x, layer.k_norm, position));
        const Row value = product(layer.v, x);
        values_[index].push_back(value);
        Row out;
        const std::size_t group = queries.size() / keys_[index][0].size();
        for (std::size_t head = 0; head < queries.size(); ++head) {
            Row sums(kBlock);
            double total = 0.0;
            for (std::size_t p = 0; p < keys_[index].size(); ++p) {
                const Row &key = keys_[index][p][head / group];
                const double weight = std::exp(std::inner_product(key.begin(), key.end(), queries[head].begin(), 0.0) / std::sqrt(double{kBlock}));
                total += weight;
                for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += weight * values_[index][p][head / group * kBlock + d];
            }
            for (const double sum : sums) out.push_back(sum / total);
        }
        return out;
    }

    const Model &model_;
    std::vector<std::vector<std::vector<Row>>> keys_;  // [layer][position][head]
    std::vector<std::vector<Row>> values_;             // [layer][position]
};

void trial(Random &random) {
    const bool plain = random.below(2) == 0;
    const Model model(random, plain);
    const std::int64_t length = 1 + random.below(kLength);
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> ends;
    for (std::int64_t i = 0; i < length; ++i) {
        ids.push_back(random.below(kVocab));
        if (i + 1 == length || random.below(2) == 0) ends.push_back(i + 1);
    }
    std::vector<std::int32_t> pages(kSlots), backwards(kSlots);
    std::iota(pages.begin(), pages.end(), 0);
    std::iota(backwards.rbegin(), backwards.rend(), 0);
    const std::vector<float> whole = decoded(model, ids, {length}, pages, 1);
    expect(whole == decoded(model, ids, ends, backwards, 3), "in parts, in other slots or by other threads the logits have other bits");
    const std::vector<float> some = decoded(model, ids, ends, pages, 2, &random);
    for (std::size_t i = 0; i < whole.size(); ++i)
        expect(std::isnan(some[i]) || some[i] == whole[i], "where fewer logits are wanted they have other bits");
    if (!plain) return;
    Plain reference(model);
    for (std::int64_t position = 0; position < length; ++position) {
        const Row expected = reference.logits(ids[static_cast<std::size_t>(position)], position);
        for (std::size_t token = 0; token < expected.size(); ++token)
            expect(near(whole[static_cast<std::size_t>(position) * kVocab + token], expected[token], 1e-3), "a logit is off");
    }
}

}  // namespace

int main(int argc, char **argv) { return run_trials("decoder_test", argc, argv, 60, trial); }
