// Ops over token ids.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bindings.h"
#include "radixrt/common_prefix_length.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A contiguous buffer of int32, borrowed from a Python object for the length of a call.  PyObject_GetBuffer and not
// nb::ndarray: a call takes a third of the time, and a tree walk makes one call a node.
class TokenBuffer {
public:
    TokenBuffer(nb::handle object, const char *op) : op_(op) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            throw_wrong_kind();
        }
        if (view_.ndim != 1 || view_.itemsize != sizeof(std::int32_t) || view_.format == nullptr || std::string_view(view_.format) != "i") {
            PyBuffer_Release(&view_);
            throw_wrong_kind();
        }
    }
    TokenBuffer(const TokenBuffer &) = delete;
    TokenBuffer &operator=(const TokenBuffer &) = delete;
    ~TokenBuffer() { PyBuffer_Release(&view_); }

    std::span<const std::int32_t> from(Py_ssize_t start) const {
        const Py_ssize_t length = view_.shape[0];
        if (start < 0 || start > length) {
            std::string message = prefix();
            message.append("start ").append(std::to_string(start)).append(" is outside [0, ").append(std::to_string(length)).append("]");
            throw nb::value_error(message.c_str());
        }
        return {static_cast<const std::int32_t *>(view_.buf) + start, static_cast<std::size_t>(length - start)};
    }

private:
    std::string prefix() const { return std::string("[").append(op_).append("] "); }

    [[noreturn]] void throw_wrong_kind() const {
        throw nb::type_error(prefix().append("expected a contiguous one-dimensional buffer of int32").c_str());
    }

    const char *op_;
    Py_buffer view_;
};

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
