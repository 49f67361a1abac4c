// Token masks of automata.
#include "radixrt/token_trie.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Items = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int32_t> items(const Items &array) { return {array.data(), array.size()}; }
std::span<const std::uint8_t> items(const nb::bytes &text) { return {static_cast<const std::uint8_t *>(text.data()), text.size()}; }

}  // namespace

void init_token_trie(nb::module_ &m) {  // NOLINT(misc-const-correctness): one signature for all
    nb::class_<radixrt::ByteAutomaton>(m, "ByteAutomaton")
        .def(
            "__init__",
            [](radixrt::ByteAutomaton *self, const Items &first, const nb::bytes &low, const nb::bytes &high, const Items &target, const nb::bytes &live) {
                new (self) radixrt::ByteAutomaton(items(first), items(low), items(high), items(target), items(live));
            },
            "first"_a, "low"_a, "high"_a, "target"_a, "live"_a);
    nb::class_<radixrt::TokenTrie>(m, "TokenTrie")
        .def(
            "__init__",
            [](radixrt::TokenTrie *self, const nb::bytes &text, const Items &ends, const Items &tokens) {
                new (self) radixrt::TokenTrie(items(text), items(ends), items(tokens));
            },
            "text"_a, "ends"_a, "tokens"_a)
        .def(
            "fill_mask",
            [](const radixrt::TokenTrie &self, const radixrt::ByteAutomaton &automaton, std::int32_t state, const Row &row) {
                const nb::gil_scoped_release released;
                self.fill_mask(automaton, state, {row.data(), row.size()});
            },
            "automaton"_a, "state"_a, "row"_a, "Write the packed mask of the tokens that lead from a state to a live one.")
        .def(
            "fill_starts",
            [](const radixrt::TokenTrie &self, const nb::bytes &text, const Row &row) { return self.fill_starts(items(text), {row.data(), row.size()}); },
            "text"_a, "row"_a, "Write the packed mask of the tokens that a text starts with; tell whether longer ones start with all of it.")
        .def("reach", &radixrt::TokenTrie::reach, "automaton"_a, "state"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Return the live states that one token leads to from a state, each with one such token.")
        .def("memory_bytes", &radixrt::TokenTrie::memory_bytes);
}
