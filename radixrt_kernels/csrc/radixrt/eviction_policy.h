// Which leaf of the radix tree goes first: the built-in policies, each the same formula as its class in Python.
#pragma once

#include <cstdint>

namespace radixrt {

// What a policy may look at.  Times are ticks of the tree's logical clock.
struct NodeFacts {
    std::int64_t last_access;
    std::int64_t created;
    std::int64_t priority;
    double floor;  // the highest `first` among leaves that had been evicted when the node was last used
    std::uint32_t hits;
    std::uint32_t start;  // position of its first token in the sequence
    std::uint32_t size;
};

// The place of a leaf in the order of eviction; the smallest goes first.
struct Order {
    double first;
    double second;
};

class EvictionPolicy {
public:
    enum class Kind : std::uint8_t { lru, lfu, slru, fifo, mru, filo, priority, cost };

    // `parameter`: protected_threshold of slru, attention_length of cost; others have none.
    EvictionPolicy(Kind kind, std::int64_t parameter) noexcept : kind_(kind), parameter_(parameter) {}

    Order order(const NodeFacts &node) const noexcept {
        const auto last_access = static_cast<double>(node.last_access);
        const auto created = static_cast<double>(node.created);
        switch (kind_) {
            case Kind::lru: return {last_access, 0.0};
            case Kind::lfu: return {static_cast<double>(node.hits), last_access};
            case Kind::slru: return {node.hits >= parameter_ ? 1.0 : 0.0, last_access};
            case Kind::fifo: return {created, 0.0};
            case Kind::mru: return {-last_access, 0.0};
            case Kind::filo: return {-created, 0.0};
            case Kind::priority: return {static_cast<double>(node.priority), last_access};
            case Kind::cost: return {node.floor + reuse_chance(node) * token_cost(node), last_access};
        }
        return {last_access, 0.0};
    }

private:
    static double reuse_chance(const NodeFacts &node) noexcept { return (node.hits + 1.0) / (node.hits + 2.0); }

    double token_cost(const NodeFacts &node) const noexcept {
        return 1.0 + (node.start + (node.size - 1.0) / 2.0) / static_cast<double>(parameter_);
    }

    Kind kind_;
    std::int64_t parameter_;
};

}  // namespace radixrt
