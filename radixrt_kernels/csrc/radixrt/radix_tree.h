// The radix tree: token ids to KV slots, one slot a token.  radixrt/cache/radix_tree.py is its specification: the same
// operations, results and victims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "radixrt/child_table.h"
#include "radixrt/eviction_policy.h"
#include "radixrt/node_arena.h"
#include "radixrt/victim_queue.h"
#include "radixrt/watchers.h"

namespace radixrt {

// A broken promise of the caller's or of the tree's.
struct InvariantError : std::logic_error {
    using std::logic_error::logic_error;
};

inline void require(bool holds, const char *message) {
    if (!holds) {
        throw InvariantError(message);
    }
}

struct Match {
    NodeIndex node;
    std::size_t length;
};

struct Insertion {
    NodeIndex node;
    std::size_t num_present;
};

struct TreeStats {
    std::size_t evictable, locked, num_nodes, evicted, pinned;
};

struct NodeView {
    NodeIndex node;
    std::size_t subtree_tokens;
    std::size_t num_children;
};

// Namespaces are small numbers that the caller gives out; `take_retired` tells which are unused again.
class RadixTree {
public:
    explicit RadixTree(EvictionPolicy policy) noexcept : policy_(policy), watchers_(*this) {}
    RadixTree(const RadixTree &) = delete;
    RadixTree &operator=(const RadixTree &) = delete;

    // Where a sequence begins: the root of a namespace, made if need be, or `no_node`.
    NodeIndex root(Space space);
    NodeIndex find_root(Space space) const noexcept;
    // The node of a handle, or `no_node` when it is void.
    NodeIndex find(Handle handle) const noexcept { return nodes_.find(handle); }
    Handle handle(NodeIndex node) const noexcept { return nodes_.handle(node); }
    const Node &node(NodeIndex index) const noexcept { return nodes_[index]; }

    Match match(NodeIndex start, std::span<const Token> tokens);
    std::size_t match_length(NodeIndex start, std::span<const Token> tokens) const noexcept;
    Insertion insert(NodeIndex start, std::span<const Token> tokens, std::span<const Slot> slots, std::int64_t priority);
    // Writes the slots of the last `out.size()` tokens that end at `node`.
    void copy_slots(NodeIndex node, std::span<Slot> out) const noexcept;
    void lock(NodeIndex node);
    void unlock(NodeIndex node);
    void pin(NodeIndex node);
    void unpin(Handle handle);
    std::vector<Slot> evict(std::size_t num_slots);
    // Gives up the end of the stored path of `tokens` down to `keep` tokens, as far as nothing locks, pins or continues it.
    std::vector<Slot> drop_tail(NodeIndex root, std::span<const Token> tokens, std::size_t keep);
    void clear();

    std::uint32_t watch(std::int64_t key, std::span<const Token> tokens, std::shared_ptr<void> owner, Space space);
    void unwatch(std::int64_t key);
    std::vector<std::pair<std::int64_t, std::uint32_t>> take_changed() { return watchers_.take_changed(); }
    std::vector<Handle> watched_path(std::int64_t key) const;

    // How many leading tokens are stored, and up to `limit` that follow these by the latest used path.
    std::pair<std::size_t, std::vector<Token>> divergence(NodeIndex root, std::span<const Token> tokens, std::size_t limit) const;
    // The nodes below a root, parents before children, larger subtrees first.
    std::vector<NodeView> describe(NodeIndex root, std::size_t depth, std::size_t min_tokens) const;
    std::vector<Space> spaces() const;

    TreeStats stats() const noexcept;
    std::vector<Slot> stored_slots() const;
    // Throws InvariantError unless structure, counters, victims and watchers agree with a walk over all nodes.
    void check_invariants() const;
    std::size_t memory_bytes() const noexcept;
    // Namespaces that nothing is stored in and nobody watches, since the last call.
    std::vector<Space> take_retired() { return std::exchange(retired_, {}); }
    bool has_retired() const noexcept { return !retired_.empty(); }

    // Follows tokens[length:] from `length` tokens below the root, inside the edge of `node`.  Returns the last node and
    // length reached.  Lengths count from the root, so `tokens` must begin there.
    std::pair<NodeIndex, std::uint32_t> advance(NodeIndex node, std::uint32_t length, std::span<const Token> tokens) const noexcept;

private:
    NodeIndex add(std::span<const Token> key, std::span<const Slot> slots, NodeIndex parent);
    void link(NodeIndex node, NodeIndex parent);
    void unlink(NodeIndex node);
    NodeIndex hang(std::span<const Token> key, std::span<const Slot> slots, NodeIndex parent, std::int64_t priority);
    void grow(NodeIndex node, std::span<const Token> key, std::span<const Slot> slots);
    NodeIndex split(NodeIndex node, std::uint32_t at);
    void touch(NodeIndex node);
    void use(Node &node) noexcept;
    void raise_priority(NodeIndex node, std::int64_t priority);
    void count_pins(NodeIndex node, int count);
    void inherit_pins(NodeIndex node, NodeIndex parent);
    VictimQueue::Entry victim(NodeIndex node) const noexcept;
    void requeue(NodeIndex node);
    void cut(NodeIndex leaf, std::uint32_t keep, std::vector<Slot> &freed);
    void remove(NodeIndex node);
    void drop_empty_root(NodeIndex root);
    void retire_if_unused(Space space);
    bool has_pin_ends(NodeIndex node) const;

    EvictionPolicy policy_;
    NodeArena nodes_;
    ChildTable children_;
    VictimQueue victims_;
    Watchers watchers_;
    std::unordered_map<Space, NodeIndex> roots_;
    std::unordered_map<NodeIndex, std::unordered_map<Handle, std::uint32_t>> pins_at_;  // those that end at a node
    std::unordered_map<Handle, NodeIndex> pin_ends_;                                    // where a pin ends now
    std::vector<Space> retired_;
    Handle last_root_ = -1;  // a root made by a match that found nothing and that nobody locked is dropped with the next one
    std::int64_t clock_ = 0;
    double floor_ = 0.0;
    std::size_t evictable_ = 0, locked_ = 0, pinned_ = 0, evicted_ = 0;
};

}  // namespace radixrt
