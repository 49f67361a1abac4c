// Tensors borrowed from Python for the length of a call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nanobind/ndarray.h>

template <class T, int dimensions>
using Array = nanobind::ndarray<T, nanobind::ndim<dimensions>, nanobind::c_contig, nanobind::device::cpu>;

template <class T>
std::span<const T> items(const Array<const T, 1> &array) {
    return {array.data(), array.shape(0)};
}

template <class T>
std::vector<T> copied(const Array<const T, 1> &array) {
    return {array.data(), array.data() + array.shape(0)};
}

// Raises ValueError unless an array has ``expected`` as its size in a dimension.
template <class Ndarray>
void check_size(const char *op, const char *name, const Ndarray &array, int dimension, std::int64_t expected) {
    if (static_cast<std::int64_t>(array.shape(dimension)) == expected) return;
    const std::string message = std::string("[") + op + "] " + name + " has size " + std::to_string(array.shape(dimension)) + " in dimension " +
                                std::to_string(dimension) + ", not " + std::to_string(expected);
    throw nanobind::value_error(message.c_str());
}
