// How far two token sequences agree: the inner comparison of a radix-tree walk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace radixrt {

// Counts the leading items that `a` and `b` share.
inline std::size_t common_prefix_length(std::span<const std::int32_t> a, std::span<const std::int32_t> b) noexcept {
    // memcmp is vectorised by the C library, an early-exit loop by no compiler; it tells only that a block differs, so
    // blocks are small enough for the last one to be cheap to search.
    constexpr std::size_t block = 64;
    const std::size_t shorter = std::min(a.size(), b.size());
    std::size_t start = 0;
    while (shorter - start >= block && std::memcmp(a.data() + start, b.data() + start, block * sizeof(std::int32_t)) == 0) {
        start += block;
    }
    while (start < shorter && a[start] == b[start]) {
        ++start;
    }
    return start;
}

}  // namespace radixrt
