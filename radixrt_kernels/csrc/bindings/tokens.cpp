// Ops over token ids.
#include <cstddef>

#include "bindings.h"
#include "radixrt/common_prefix_length.h"
#include "token_buffer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

std::size_t common_prefix_length(nb::handle a, Py_ssize_t a_start, nb::handle b, Py_ssize_t b_start) {
    const TokenBuffer left(a, "common_prefix_length");
    const TokenBuffer right(b, "common_prefix_length");
    return radixrt::common_prefix_length(left.from(a_start), right.from(b_start));
}

}  // namespace

void init_tokens(nb::module_ &m) {
    // The GIL stays held: the tokens of a node are compared in less time than giving it away and getting it back takes.
    m.def("common_prefix_length", &common_prefix_length, "a"_a, "a_start"_a, "b"_a, "b_start"_a,
          "Count the leading items that a[a_start:] and b[b_start:], buffers of int32, share.");
}
