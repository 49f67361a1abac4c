// Looking at the tree without changing it: where sequences leave it, what it holds, and whether its ledgers agree.
#include <algorithm>

#include "radixrt/radix_tree.h"

namespace radixrt {

std::vector<Handle> RadixTree::watched_path(std::int64_t key) const {
    const Watcher *watcher = watchers_.find(key);
    if (watcher == nullptr) {
        throw std::out_of_range("[watched_path] key is not watched");
    }
    std::vector<Handle> path;
    for (NodeIndex at = watcher->place->node; at != no_node && !nodes_[at].is_root(); at = nodes_[at].parent) {
        path.push_back(nodes_.handle(at));
    }
    std::reverse(path.begin(), path.end());
    return path;
}

std::pair<std::size_t, std::vector<Token>> RadixTree::divergence(NodeIndex root, std::span<const Token> tokens, std::size_t limit) const {
    if (root == no_node) {
        return {0, {}};
    }
    auto [at, length] = advance(root, 0, tokens);
    const std::size_t matched = length;
    std::vector<Token> following;
    while (at != no_node && following.size() < limit) {
        const auto rest = nodes_[at].key().subspan(length - nodes_[at].start);
        const auto shown = rest.first(std::min(rest.size(), limit - following.size()));
        following.insert(following.end(), shown.begin(), shown.end());
        NodeIndex latest = no_node;
        for (NodeIndex child = nodes_[at].first_child; child != no_node; child = nodes_[child].next_sibling) {
            const bool later = latest == no_node || nodes_[child].last_access > nodes_[latest].last_access ||
                               (nodes_[child].last_access == nodes_[latest].last_access && nodes_[child].key()[0] < nodes_[latest].key()[0]);
            latest = later ? child : latest;
        }
        length = nodes_[at].end();
        at = latest;
    }
    return {matched, std::move(following)};
}

std::vector<NodeView> RadixTree::describe(NodeIndex root, std::size_t depth, std::size_t min_tokens) const {
    std::vector<NodeIndex> order{root};
    for (std::size_t i = 0; i < order.size(); ++i) {
        for (NodeIndex child = nodes_[order[i]].first_child; child != no_node; child = nodes_[child].next_sibling) {
            order.push_back(child);
        }
    }
    std::unordered_map<NodeIndex, std::size_t> totals;
    totals.reserve(order.size());
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
        const std::size_t total = totals[*at] += nodes_[*at].size;
        if (*at != root) {
            totals[nodes_[*at].parent] += total;
        }
    }
    std::vector<NodeView> shown;
    std::vector<std::pair<NodeIndex, std::size_t>> stack;
    const auto push_children = [&](NodeIndex parent, std::size_t level) {
        const auto first = static_cast<std::ptrdiff_t>(stack.size());
        for (NodeIndex child = nodes_[parent].first_child; child != no_node; child = nodes_[child].next_sibling) {
            stack.emplace_back(child, level);
        }
        std::sort(stack.begin() + first, stack.end(), [&](const auto &a, const auto &b) {
            const std::size_t a_total = totals[a.first], b_total = totals[b.first];
            return a_total != b_total ? a_total < b_total : nodes_[a.first].key()[0] > nodes_[b.first].key()[0];
        });
        return stack.size() - static_cast<std::size_t>(first);
    };
    if (depth > 0) {
        push_children(root, 1);
    }
    while (!stack.empty()) {
        const auto [at, level] = stack.back();
        stack.pop_back();
        if (totals[at] < min_tokens) {
            continue;
        }
        std::size_t num_children = 0;
        for (NodeIndex child = nodes_[at].first_child; child != no_node; child = nodes_[child].next_sibling) {
            ++num_children;
        }
        shown.push_back({at, totals[at], num_children});
        if (level < depth) {
            push_children(at, level + 1);
        }
    }
    return shown;
}

std::vector<Space> RadixTree::spaces() const {
    std::vector<std::pair<std::uint64_t, Space>> by_age;
    by_age.reserve(roots_.size());
    for (const auto &[space, root] : roots_) {
        by_age.emplace_back(nodes_[root].serial, space);
    }
    std::sort(by_age.begin(), by_age.end());
    std::vector<Space> spaces;
    spaces.reserve(by_age.size());
    for (const auto &[serial, space] : by_age) {
        spaces.push_back(space);
    }
    return spaces;
}

TreeStats RadixTree::stats() const noexcept { return {evictable_, locked_, nodes_.count() - roots_.size(), evicted_, pinned_}; }

std::vector<Slot> RadixTree::stored_slots() const {
    std::vector<Slot> stored;
    stored.reserve(evictable_ + locked_);
    for (NodeIndex index = 0; index < nodes_.num_cells(); ++index) {
        const auto slots = nodes_[index].slots();
        stored.insert(stored.end(), slots.begin(), slots.end());
    }
    return stored;
}

std::size_t RadixTree::memory_bytes() const noexcept {
    std::size_t cells = 0;
    for (NodeIndex index = 0; index < nodes_.num_cells(); ++index) {
        cells += 2 * sizeof(Token) * nodes_[index].capacity;
    }
    return cells + nodes_.memory_bytes() + children_.memory_bytes() + victims_.memory_bytes();
}

void RadixTree::check_invariants() const {
    std::size_t evictable = 0, locked = 0, pinned = 0, num_nodes = 0, num_victims = 0;
    std::vector<NodeIndex> stack;
    for (const auto &[space, root] : roots_) {
        require(nodes_[root].is_root() && nodes_[root].space == space, "a root is where its namespace says");
        stack.push_back(root);
    }
    while (!stack.empty()) {
        const NodeIndex index = stack.back();
        stack.pop_back();
        ++num_nodes;
        const Node &node = nodes_[index];
        require(node.serial != 0 && nodes_.find(nodes_.handle(index)) == index, "a reachable node is live");
        std::uint64_t locks_below = 0, pins_below = 0;
        NodeIndex previous = no_node;
        for (NodeIndex child = node.first_child; child != no_node; previous = child, child = nodes_[child].next_sibling) {
            const Node &below = nodes_[child];
            require(below.parent == index && below.previous_sibling == previous, "siblings are linked");
            require(below.size > 0 && children_.find(index, below.key()[0]) == child, "a child is found by its first token");
            require(below.start == node.end(), "positions add up");
            require(below.priority <= node.priority, "nobody has a lower priority than those below it");
            locks_below += below.locks;
            pins_below += below.pins;
            stack.push_back(child);
        }
        require(node.locks >= locks_below, "a lock holds every ancestor");
        if (node.is_root()) {
            require(node.size == 0, "a root is empty");
            require(!node.is_leaf() || node.locks > 0 || nodes_.handle(index) == last_root_, "an empty root is dropped");
            continue;
        }
        if (const auto ends = pins_at_.find(index); ends != pins_at_.end()) {
            for (const auto &[handle, count] : ends->second) {
                require(count > 0 && pin_ends_.at(handle) == index, "a pin ends where it says");
                pins_below += count;
            }
        }
        require(node.pins == pins_below, "pins add up");
        const VictimQueue::Entry *entry = victims_.find(index);
        require((entry != nullptr) == (node.is_leaf() && node.locks == 0), "evictable leaves are queued");
        require(entry == nullptr || *entry == victim(index), "leaves are queued in the policy's order");
        num_victims += entry != nullptr;
        (node.locks > 0 ? locked : evictable) += node.size;
        pinned += node.pins > 0 && node.locks == 0 ? node.size : 0;
    }
    require(num_nodes == nodes_.count(), "every node is reachable");
    require(num_victims == victims_.size(), "nothing else is queued");
    require(evictable == evictable_ && locked == locked_ && pinned == pinned_, "counters agree with the nodes");
    for (const auto &[key, watcher] : watchers_.all()) {
        require(watcher.length() == match_length(find_root(watcher.space), watcher.tokens), "watchers are up to date");
    }
}

}  // namespace radixrt
