// Evictable leaves in the order they will go: a heap that knows where each leaf stands, so that a change of one leaf costs
// O(log n), nothing stale gathers and nothing is ever rebuilt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "radixrt/child_table.h"
#include "radixrt/eviction_policy.h"

namespace radixrt {

class VictimQueue {
public:
    struct Entry {
        Order order;
        std::uint64_t serial;  // creation order breaks ties
        NodeIndex node;
        bool pinned;

        friend bool operator<(const Entry &a, const Entry &b) noexcept {
            return std::tie(a.pinned, a.order.first, a.order.second, a.serial) < std::tie(b.pinned, b.order.first, b.order.second, b.serial);
        }
        friend bool operator==(const Entry &a, const Entry &b) noexcept { return !(a < b) && !(b < a) && a.node == b.node; }
    };

    std::size_t size() const noexcept { return heap_.size(); }

    // Adds a leaf, or gives it a new place.
    void push(const Entry &entry) {
        if (entry.node >= positions_.size()) {
            positions_.resize(entry.node + 1, absent);
        }
        std::size_t at = positions_[entry.node];
        if (at == absent) {
            at = heap_.size();
            heap_.push_back(entry);
        }
        settle(at, entry);
    }

    void discard(NodeIndex node) noexcept {
        if (node >= positions_.size() || positions_[node] == absent) {
            return;
        }
        const std::size_t at = positions_[node];
        positions_[node] = absent;
        const Entry last = heap_.back();
        heap_.pop_back();
        if (at < heap_.size()) {
            settle(at, last);
        }
    }

    // The leaf that goes first, or nullptr.
    const Entry *peek() const noexcept { return heap_.empty() ? nullptr : &heap_.front(); }

    const Entry *find(NodeIndex node) const noexcept {
        return node < positions_.size() && positions_[node] != absent ? &heap_[positions_[node]] : nullptr;
    }

    void clear() noexcept {
        heap_ = std::vector<Entry>();
        positions_ = std::vector<std::uint32_t>();
    }

    std::size_t memory_bytes() const noexcept {
        return heap_.capacity() * sizeof(Entry) + positions_.capacity() * sizeof(std::uint32_t);
    }

private:
    static constexpr std::uint32_t absent = 0xFFFFFFFF;
    static constexpr std::size_t arity = 4;

    void place(std::size_t at, const Entry &entry) noexcept {
        heap_[at] = entry;
        positions_[entry.node] = static_cast<std::uint32_t>(at);
    }

    // Puts an entry where the heap order wants it, starting from the hole `at`.
    void settle(std::size_t at, const Entry entry) noexcept {
        while (at > 0 && entry < heap_[(at - 1) / arity]) {
            place(at, heap_[(at - 1) / arity]);
            at = (at - 1) / arity;
        }
        for (std::size_t child = arity * at + 1; child < heap_.size(); child = arity * at + 1) {
            std::size_t least = child;
            for (std::size_t other = child + 1; other < heap_.size() && other < child + arity; ++other) {
                if (heap_[other] < heap_[least]) {
                    least = other;
                }
            }
            if (!(heap_[least] < entry)) {
                break;
            }
            place(at, heap_[least]);
            at = least;
        }
        place(at, entry);
    }

    std::vector<Entry> heap_;
    std::vector<std::uint32_t> positions_;  // by node
};

}  // namespace radixrt
