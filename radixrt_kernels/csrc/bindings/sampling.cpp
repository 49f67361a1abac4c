// Sampling and logprobs.
#include <optional>
#include <stdexcept>
#include <tuple>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "radixrt/sampling.h"
#include "radixrt/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace radixrt;

namespace {

template <class T>
using Line = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Table = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Edits = std::optional<std::tuple<Line<const std::int64_t>, Line<const std::int64_t>, Line<const float>>>;

void require(bool holds, const char *message) {
    if (!holds) throw std::invalid_argument(message);
}

LogitEdits view(const Edits &edits, std::size_t num_rows, std::size_t vocab_size) {
    if (!edits) return {nullptr, nullptr, nullptr, 0};
    const auto &[rows, tokens, values] = *edits;
    require(rows.shape(0) == tokens.shape(0) && rows.shape(0) == values.shape(0), "[sample] edits are a row, a token and a value each");
    for (std::size_t i = 0; i < rows.shape(0); ++i)
        require(rows(i) >= 0 && rows(i) < static_cast<std::int64_t>(num_rows) && tokens(i) >= 0 &&
                    tokens(i) < static_cast<std::int64_t>(vocab_size),
                "[sample] an edit is outside the logits");
    return {rows.data(), tokens.data(), values.data(), static_cast<std::int64_t>(rows.shape(0))};
}

void run_sample(const Table<float> &logits, const Line<const bool> &greedy, const Line<const float> &temperature,
                const Line<const std::int64_t> &top_k, const Line<const float> &top_p, const Line<const float> &min_p,
                const Line<const double> &uniform, const Edits &penalties, const Edits &repetition, const Edits &bias,
                const std::optional<Table<const std::int32_t>> &mask, const Line<std::int64_t> &tokens) {
    const std::size_t rows = logits.shape(0), size = logits.shape(1);
    for (const std::size_t length : {greedy.shape(0), temperature.shape(0), top_k.shape(0), top_p.shape(0), min_p.shape(0),
                                     uniform.shape(0), tokens.shape(0)})
        require(length == rows, "[sample] every parameter is one a row");
    require(size > 0 && size < (std::size_t{1} << 31), "[sample] the vocabulary is empty or too large");
    for (std::size_t i = 0; i < rows; ++i) require(top_k(i) >= 1, "[sample] top_k is at least 1");
    if (mask) require(mask->shape(0) == rows && mask->shape(1) == (size + 31) / 32, "[sample] the mask is [rows, ceil(vocab / 32)]");
    const SamplingArgs args{logits.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(size), greedy.data(),
                            temperature.data(), top_k.data(), top_p.data(), min_p.data(), uniform.data(), view(penalties, rows, size),
                            view(repetition, rows, size), view(bias, rows, size), mask ? mask->data() : nullptr, tokens.data()};
    const nb::gil_scoped_release release;
    sample(args, thread_pool());
}

void run_logprobs(const Table<const float> &logits, const Line<const std::int64_t> &chosen,
                  const std::optional<Table<const std::int64_t>> &given, const Line<float> &chosen_logprobs, const Table<float> &top_logprobs,
                  const Table<std::int64_t> &top_ids, const std::optional<Table<float>> &given_logprobs) {
    const std::size_t rows = logits.shape(0), size = logits.shape(1), top = top_ids.shape(1);
    require(chosen.shape(0) == rows && chosen_logprobs.shape(0) == rows && top_ids.shape(0) == rows && top_logprobs.shape(0) == rows &&
                top_logprobs.shape(1) == top && top <= size,
            "[logprobs_of] shapes do not fit");
    require(given.has_value() == given_logprobs.has_value(), "[logprobs_of] given ids need a place for their logprobs");
    if (given && given_logprobs)
        require(given->shape(0) == rows && given_logprobs->shape(0) == rows && given_logprobs->shape(1) == given->shape(1),
                "[logprobs_of] shapes do not fit");
    const auto known = [&](std::int64_t token) { return token < static_cast<std::int64_t>(size); };
    for (std::size_t i = 0; i < rows; ++i) {
        require(known(chosen(i)), "[logprobs_of] an id is outside the vocabulary");
        for (std::size_t j = 0; given && j < given->shape(1); ++j) require(known((*given)(i, j)), "[logprobs_of] an id is outside the vocabulary");
    }
    const LogprobArgs args{logits.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(size), chosen.data(),
                           static_cast<std::int64_t>(top), given ? given->data() : nullptr,
                           given ? static_cast<std::int64_t>(given->shape(1)) : 0, chosen_logprobs.data(), top_logprobs.data(),
                           top_ids.data(), given_logprobs ? given_logprobs->data() : nullptr};
    const nb::gil_scoped_release release;
    logprobs_of(args, thread_pool());
}

}  // namespace

void init_sampling(nb::module_ &m) {
    m.def("sample", &run_sample, "logits"_a, "greedy"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "uniform"_a,
          "penalties"_a.none(), "repetition"_a.none(), "bias"_a.none(), "mask"_a.none(), "tokens"_a,
          "Choose a token for each row of logits [S, V] float32, which are edited; -1 where none can be.");
    m.def("logprobs_of", &run_logprobs, "logits"_a, "chosen"_a, "given"_a.none(), "chosen_logprobs"_a, "top_logprobs"_a, "top_ids"_a,
          "given_logprobs"_a.none(), "Logprobs of chosen and given ids, and the largest, of each row of logits [Q, V] float32.");
}
