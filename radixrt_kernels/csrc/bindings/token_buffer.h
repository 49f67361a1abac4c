// Token ids borrowed from Python.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nanobind/nanobind.h>

// A contiguous buffer of int32, borrowed from a Python object for the length of a call.  PyObject_GetBuffer and not
// nb::ndarray: a call takes a third of the time, and a tree walk makes one call a node.
class TokenBuffer {
public:
    TokenBuffer(nanobind::handle object, const char *op) : op_(op) {
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

    std::span<const std::int32_t> all() const { return from(0); }

    std::span<const std::int32_t> from(Py_ssize_t start) const {
        const Py_ssize_t length = view_.shape[0];
        if (start < 0 || start > length) {
            std::string message = prefix();
            message.append("start ").append(std::to_string(start)).append(" is outside [0, ").append(std::to_string(length)).append("]");
            throw nanobind::value_error(message.c_str());
        }
        return {static_cast<const std::int32_t *>(view_.buf) + start, static_cast<std::size_t>(length - start)};
    }

private:
    std::string prefix() const { return std::string("[").append(op_).append("] "); }

    [[noreturn]] void throw_wrong_kind() const {
        throw nanobind::type_error(prefix().append("expected a contiguous one-dimensional buffer of int32").c_str());
    }

    const char *op_;
    Py_buffer view_;
};
