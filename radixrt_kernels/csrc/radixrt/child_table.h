// The children of all nodes of a radix tree in one open-addressing table: (parent, first token) -> child.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace radixrt {

using NodeIndex = std::uint32_t;
inline constexpr NodeIndex no_node = 0xFFFFFFFF;

// Linear probing; a removal shifts what follows back, so that no tombstones gather.
class ChildTable {
public:
    NodeIndex find(NodeIndex parent, std::int32_t token) const noexcept {
        if (entries_.empty()) {
            return no_node;
        }
        return entries_[locate(parent, token)].child;
    }

    // Adds a child, or replaces the one with the same parent and token.
    void put(NodeIndex parent, std::int32_t token, NodeIndex child) {
        if (10 * (count_ + 1) > 7 * entries_.size()) {
            grow();
        }
        Entry &entry = entries_[locate(parent, token)];
        count_ += entry.child == no_node;
        entry = {parent, token, child};
    }

    void erase(NodeIndex parent, std::int32_t token) noexcept {
        std::size_t hole = locate(parent, token);
        if (entries_[hole].child == no_node) {
            return;
        }
        for (std::size_t at = next(hole); entries_[at].child != no_node; at = next(at)) {
            // An entry may move into the hole unless its own probe sequence starts behind the hole.
            const std::size_t home = hash(entries_[at].parent, entries_[at].token);
            if (((at - home) & mask()) >= ((at - hole) & mask())) {
                entries_[hole] = entries_[at];
                hole = at;
            }
        }
        entries_[hole].child = no_node;
        --count_;
    }

    void clear() noexcept {
        entries_ = std::vector<Entry>();
        count_ = 0;
    }

    std::size_t memory_bytes() const noexcept { return entries_.capacity() * sizeof(Entry); }

private:
    struct Entry {
        NodeIndex parent = 0;
        std::int32_t token = 0;
        NodeIndex child = no_node;
    };

    std::size_t mask() const noexcept { return entries_.size() - 1; }
    std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }

    std::size_t hash(NodeIndex parent, std::int32_t token) const noexcept {
        std::uint64_t x = (std::uint64_t{parent} << 32 | static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15ull;
        x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
        return static_cast<std::size_t>(x ^ (x >> 32)) & mask();
    }

    std::size_t locate(NodeIndex parent, std::int32_t token) const noexcept {
        std::size_t at = hash(parent, token);
        while (entries_[at].child != no_node && (entries_[at].parent != parent || entries_[at].token != token)) {
            at = next(at);
        }
        return at;
    }

    void grow() {
        std::vector<Entry> old(entries_.empty() ? 64 : 2 * entries_.size());
        std::swap(old, entries_);
        for (const Entry &entry : old) {
            if (entry.child != no_node) {
                entries_[locate(entry.parent, entry.token)] = entry;
            }
        }
    }

    std::vector<Entry> entries_;
    std::size_t count_ = 0;
};

}  // namespace radixrt
