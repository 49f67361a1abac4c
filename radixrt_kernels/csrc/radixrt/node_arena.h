// The nodes of a radix tree in cells that never move; an index names a cell, a handle names a node for good.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "radixrt/child_table.h"

namespace radixrt {

using Token = std::int32_t;
using Slot = std::int32_t;
using Handle = std::int64_t;
using Space = std::uint32_t;

// An edge and its end: token i of the edge is stored in slot i and lies start + i tokens below the root.
struct Node {
    std::unique_ptr<std::int32_t[]> cells;  // `capacity` tokens, then `capacity` slots
    std::uint32_t size = 0;
    std::uint32_t capacity = 0;
    std::uint32_t start = 0;
    NodeIndex parent = no_node;
    NodeIndex first_child = no_node;
    NodeIndex next_sibling = no_node;
    NodeIndex previous_sibling = no_node;
    std::uint32_t locks = 0;
    std::uint32_t pins = 0;  // that end here or below
    std::uint32_t hits = 0;
    Space space = 0;  // of roots only
    std::int64_t last_access = 0;
    std::int64_t created = 0;
    std::int64_t priority = 0;
    double floor = 0.0;
    std::uint64_t serial = 0;  // order of creation; 0 in an empty cell

    std::span<const Token> key() const noexcept { return {cells.get(), size}; }
    std::span<const Slot> slots() const noexcept { return {cells.get() + capacity, size}; }
    std::uint32_t end() const noexcept { return start + size; }
    bool is_root() const noexcept { return parent == no_node; }
    bool is_leaf() const noexcept { return first_child == no_node; }

    // Makes the edge these tokens and slots.
    void assign(std::span<const Token> tokens, std::span<const Slot> new_slots) {
        reserve_exactly(static_cast<std::uint32_t>(tokens.size()), 0);
        append(tokens, new_slots);
    }

    // Lengthens the edge; capacity grows in steps, because a sequence grows token by token.
    void append(std::span<const Token> tokens, std::span<const Slot> new_slots) {
        const auto added = static_cast<std::uint32_t>(tokens.size());
        if (size + added > capacity) {
            reserve_exactly(std::max(size + added, capacity + capacity / 2 + 8), size);
        }
        std::copy(tokens.begin(), tokens.end(), cells.get() + size);
        std::copy(new_slots.begin(), new_slots.end(), cells.get() + capacity + size);
        size += added;
    }

    // Forgets the tail; memory follows once three quarters of it are unused.
    void trim(std::uint32_t keep) {
        size = keep;
        if (keep < capacity / 4) {
            reserve_exactly(keep, keep);
        }
    }

    // Forgets the head.
    void behead(std::uint32_t count) {
        const auto old = std::move(cells);
        const std::uint32_t old_capacity = capacity, left = size - count;
        cells = std::make_unique_for_overwrite<std::int32_t[]>(2 * std::size_t{left});
        capacity = size = left;
        std::copy_n(old.get() + count, left, cells.get());
        std::copy_n(old.get() + old_capacity + count, left, cells.get() + left);
        start += count;
    }

private:
    void reserve_exactly(std::uint32_t new_capacity, std::uint32_t keep) {
        const auto old = std::move(cells);
        cells = std::make_unique_for_overwrite<std::int32_t[]>(2 * std::size_t{new_capacity});
        if (keep > 0) {
            std::copy_n(old.get(), keep, cells.get());
            std::copy_n(old.get() + capacity, keep, cells.get() + new_capacity);
        }
        size = keep;
        capacity = new_capacity;
    }
};

class NodeArena {
public:
    Node &operator[](NodeIndex index) noexcept { return chunks_[index / chunk_size][index % chunk_size]; }
    const Node &operator[](NodeIndex index) const noexcept { return chunks_[index / chunk_size][index % chunk_size]; }

    std::size_t count() const noexcept { return num_cells_ - free_.size(); }
    NodeIndex num_cells() const noexcept { return num_cells_; }

    NodeIndex allocate() {
        NodeIndex index;
        if (!free_.empty()) {
            index = free_.back();
            free_.pop_back();
        } else {
            if (num_cells_ % chunk_size == 0) {
                chunks_.push_back(std::make_unique<Node[]>(chunk_size));
            }
            index = num_cells_++;
        }
        (*this)[index].serial = ++last_serial_;
        return index;
    }

    void release(NodeIndex index) {
        (*this)[index] = Node{};
        free_.push_back(index);
    }

    // A handle holds its cell and the low bits of its serial, so that one whose node has gone is noticed.
    Handle handle(NodeIndex index) const noexcept {
        return static_cast<Handle>(((*this)[index].serial & serial_mask) << 32 | index);
    }

    // The cell of a handle, or `no_node` when its node has gone.
    NodeIndex find(Handle handle) const noexcept {
        const auto index = static_cast<NodeIndex>(static_cast<std::uint64_t>(handle) & 0xFFFFFFFF);
        return handle >= 0 && index < num_cells_ && (*this)[index].serial != 0 && this->handle(index) == handle ? index : no_node;
    }

    // Empties every cell; serials go on, so that old handles stay void.
    void clear() {
        chunks_.clear();
        free_ = std::vector<NodeIndex>();
        num_cells_ = 0;
    }

    std::size_t memory_bytes() const noexcept { return chunks_.size() * chunk_size * sizeof(Node) + free_.capacity() * sizeof(NodeIndex); }

private:
    static constexpr NodeIndex chunk_size = 1024;
    static constexpr std::uint64_t serial_mask = 0x7FFFFFFF;

    std::vector<std::unique_ptr<Node[]>> chunks_;
    std::vector<NodeIndex> free_;
    NodeIndex num_cells_ = 0;
    std::uint64_t last_serial_ = 0;
};

}  // namespace radixrt
