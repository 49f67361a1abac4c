#include "radixrt/radix_tree.h"

#include <algorithm>

#include "radixrt/common_prefix_length.h"

namespace radixrt {

NodeIndex RadixTree::root(Space space) {
    if (const NodeIndex found = find_root(space); found != no_node) {
        return found;
    }
    if (const NodeIndex last = nodes_.find(last_root_); last != no_node) {
        drop_empty_root(last);
    }
    const NodeIndex made = add({}, {}, no_node);
    nodes_[made].space = space;
    roots_.emplace(space, made);
    last_root_ = nodes_.handle(made);
    return made;
}

NodeIndex RadixTree::find_root(Space space) const noexcept {
    const auto at = roots_.find(space);
    return at == roots_.end() ? no_node : at->second;
}

Match RadixTree::match(NodeIndex start, std::span<const Token> tokens) {
    ++clock_;
    NodeIndex at = start;
    std::size_t length = 0;
    while (length < tokens.size()) {
        NodeIndex child = children_.find(at, tokens[length]);
        if (child == no_node) {
            break;
        }
        const std::uint32_t size = nodes_[child].size;
        const auto shared = static_cast<std::uint32_t>(common_prefix_length(nodes_[child].key(), tokens.subspan(length)));
        if (shared < size) {
            child = split(child, shared);
        }
        touch(child);
        length += shared;
        at = child;
        if (shared < size) {
            break;
        }
    }
    return {at, length};
}

std::size_t RadixTree::match_length(NodeIndex start, std::span<const Token> tokens) const noexcept {
    std::size_t length = 0;
    for (NodeIndex at = start; at != no_node && length < tokens.size();) {
        at = children_.find(at, tokens[length]);
        if (at != no_node) {
            const std::size_t shared = common_prefix_length(nodes_[at].key(), tokens.subspan(length));
            length += shared;
            if (shared < nodes_[at].size) {
                break;
            }
        }
    }
    return length;
}

Insertion RadixTree::insert(NodeIndex start, std::span<const Token> tokens, std::span<const Slot> slots, std::int64_t priority) {
    require(tokens.size() == slots.size(), "[insert] one slot a token");
    const Match found = match(start, tokens);
    NodeIndex end = found.node;
    if (found.length < tokens.size()) {
        const auto new_key = tokens.subspan(found.length);
        const auto new_slots = slots.subspan(found.length);
        const Node &node = nodes_[end];
        if (end == start && !node.is_root() && node.is_leaf() && node.locks == 1 && !has_pin_ends(end)) {
            grow(end, new_key, new_slots);
        } else {
            end = hang(new_key, new_slots, end, priority);
        }
    }
    raise_priority(found.node, priority);
    return {end, found.length};
}

void RadixTree::copy_slots(NodeIndex node, std::span<Slot> out) const noexcept {
    std::size_t left = out.size();
    for (NodeIndex at = node; left > 0; at = nodes_[at].parent) {
        const auto slots = nodes_[at].slots();
        const std::size_t count = std::min(left, slots.size());
        std::copy_n(slots.end() - static_cast<std::ptrdiff_t>(count), count, out.begin() + static_cast<std::ptrdiff_t>(left - count));
        left -= count;
    }
}

void RadixTree::lock(NodeIndex node) {
    for (NodeIndex at = node; at != no_node; at = nodes_[at].parent) {
        Node &held = nodes_[at];
        if (held.locks == 0) {
            evictable_ -= held.size;
            locked_ += held.size;
            pinned_ -= held.pins > 0 ? held.size : 0;
            victims_.discard(at);
        }
        ++held.locks;
    }
}

void RadixTree::unlock(NodeIndex node) {
    for (NodeIndex at = node; at != no_node;) {
        Node &held = nodes_[at];
        require(held.locks > 0, "[unlock] node is not locked");
        --held.locks;
        use(held);
        const NodeIndex parent = held.parent;
        if (held.locks == 0) {
            locked_ -= held.size;
            evictable_ += held.size;
            pinned_ += held.pins > 0 ? held.size : 0;
            if (parent == no_node) {
                drop_empty_root(at);
            } else {
                requeue(at);
            }
        }
        at = parent;
    }
}

std::vector<Slot> RadixTree::evict(std::size_t num_slots) {
    std::vector<Slot> freed;
    freed.reserve(std::min(num_slots, evictable_));
    while (freed.size() < num_slots) {
        const VictimQueue::Entry *first = victims_.peek();
        if (first == nullptr) {
            break;
        }
        floor_ = std::max(floor_, first->order.first);
        const std::size_t missing = num_slots - freed.size(), size = nodes_[first->node].size;
        cut(first->node, static_cast<std::uint32_t>(size > missing ? size - missing : 0), freed);
    }
    return freed;
}

std::vector<Slot> RadixTree::drop_tail(NodeIndex root, std::span<const Token> tokens, std::size_t keep) {
    std::vector<Slot> freed;
    if (root == no_node) {
        return freed;
    }
    auto [at, length] = advance(root, 0, tokens);
    if (length < nodes_[at].end()) {
        return freed;
    }
    while (!nodes_[at].is_root()) {
        const Node &node = nodes_[at];
        if (node.end() <= keep || !node.is_leaf() || node.locks > 0 || node.pins > 0) {
            break;
        }
        const NodeIndex parent = node.parent;
        const bool is_last = nodes_[parent].is_root();
        cut(at, static_cast<std::uint32_t>(keep > node.start ? keep - node.start : 0), freed);
        if (is_last) {
            break;  // an empty root may have gone with its last child
        }
        at = parent;
    }
    return freed;
}

void RadixTree::clear() {
    std::vector<Space> spaces;
    spaces.reserve(roots_.size());
    for (const auto &[space, node] : roots_) {
        spaces.push_back(space);
    }
    roots_.clear();
    nodes_.clear();
    children_.clear();
    victims_.clear();
    pins_at_.clear();
    pin_ends_.clear();
    watchers_.cleared();
    evictable_ = locked_ = pinned_ = 0;
    for (const Space space : spaces) {
        retire_if_unused(space);
    }
}

std::uint32_t RadixTree::watch(std::int64_t key, std::span<const Token> tokens, std::shared_ptr<void> owner, Space space) {
    return watchers_.add(key, tokens, std::move(owner), space, find_root(space));
}

void RadixTree::unwatch(std::int64_t key) {
    if (const auto [was_watched, space] = watchers_.discard(key); was_watched) {
        retire_if_unused(space);
    }
}

std::pair<NodeIndex, std::uint32_t> RadixTree::advance(NodeIndex node, std::uint32_t length, std::span<const Token> tokens) const noexcept {
    while (length < tokens.size()) {
        if (length == nodes_[node].end()) {
            const NodeIndex child = children_.find(node, tokens[length]);
            if (child == no_node) {
                break;
            }
            node = child;
        }
        const Node &at = nodes_[node];
        length += static_cast<std::uint32_t>(common_prefix_length(at.key().subspan(length - at.start), tokens.subspan(length)));
        if (length < at.end()) {
            break;
        }
    }
    return {node, length};
}

NodeIndex RadixTree::add(std::span<const Token> key, std::span<const Slot> slots, NodeIndex parent) {
    const NodeIndex index = nodes_.allocate();
    Node &node = nodes_[index];
    node.created = node.last_access = clock_;
    node.floor = floor_;
    if (parent != no_node) {
        node.assign(key, slots);
        node.start = nodes_[parent].end();
        link(index, parent);
    }
    return index;
}

void RadixTree::link(NodeIndex index, NodeIndex parent) {
    Node &node = nodes_[index];
    Node &above = nodes_[parent];
    node.parent = parent;
    node.previous_sibling = no_node;
    node.next_sibling = above.first_child;
    if (above.first_child != no_node) {
        nodes_[above.first_child].previous_sibling = index;
    }
    above.first_child = index;
    children_.put(parent, node.key()[0], index);
}

void RadixTree::unlink(NodeIndex index) {
    const Node &node = nodes_[index];
    children_.erase(node.parent, node.key()[0]);
    (node.previous_sibling == no_node ? nodes_[node.parent].first_child : nodes_[node.previous_sibling].next_sibling) = node.next_sibling;
    if (node.next_sibling != no_node) {
        nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
    }
}

NodeIndex RadixTree::hang(std::span<const Token> key, std::span<const Slot> slots, NodeIndex parent, std::int64_t priority) {
    const NodeIndex leaf = add(key, slots, parent);
    nodes_[leaf].priority = priority;
    victims_.discard(parent);
    evictable_ += key.size();
    requeue(leaf);
    watchers_.added(parent, leaf);
    return leaf;
}

void RadixTree::grow(NodeIndex index, std::span<const Token> key, std::span<const Slot> slots) {
    Node &node = nodes_[index];
    const std::uint32_t old_end = node.end();
    node.append(key, slots);
    use(node);
    locked_ += key.size();
    watchers_.grew(index, old_end);
}

// Cuts an edge: the new upper node takes the first `at` tokens and is returned, the old one keeps the rest and its handle.
NodeIndex RadixTree::split(NodeIndex index, std::uint32_t at) {
    const NodeIndex parent = nodes_[index].parent;
    unlink(index);
    Node &lower = nodes_[index];
    const NodeIndex upper_index = add(lower.key().first(at), lower.slots().first(at), parent);
    Node &upper = nodes_[upper_index];
    upper.locks = lower.locks;
    upper.pins = lower.pins;
    upper.hits = lower.hits;
    upper.priority = lower.priority;
    upper.last_access = lower.last_access;
    upper.created = lower.created;
    upper.floor = lower.floor;
    lower.behead(at);
    link(index, upper_index);
    watchers_.split(upper_index, index);
    requeue(index);
    return upper_index;
}

void RadixTree::touch(NodeIndex index) {
    use(nodes_[index]);
    ++nodes_[index].hits;
    requeue(index);
}

void RadixTree::use(Node &node) noexcept {
    node.last_access = clock_;
    node.floor = floor_;
}

void RadixTree::raise_priority(NodeIndex node, std::int64_t priority) {
    // Nobody has a lower priority than those below it, so the rest of the path is done where one is high enough.
    for (NodeIndex at = node; at != no_node && nodes_[at].priority < priority; at = nodes_[at].parent) {
        nodes_[at].priority = priority;
        requeue(at);
    }
}

VictimQueue::Entry RadixTree::victim(NodeIndex index) const noexcept {
    const Node &node = nodes_[index];
    const NodeFacts facts{node.last_access, node.created, node.priority, node.floor, node.hits, node.start, node.size};
    return {policy_.order(facts), node.serial, index, node.pins > 0};
}

void RadixTree::requeue(NodeIndex index) {
    const Node &node = nodes_[index];
    if (node.locks == 0 && node.is_leaf() && !node.is_root()) {
        victims_.push(victim(index));
    }
}

// Gives up the slots of an unlocked leaf beyond its first `keep` tokens.
void RadixTree::cut(NodeIndex leaf, std::uint32_t keep, std::vector<Slot> &freed) {
    Node &node = nodes_[leaf];
    const auto lost = node.slots().subspan(keep);
    freed.insert(freed.end(), lost.begin(), lost.end());
    evictable_ -= lost.size();
    pinned_ -= node.pins > 0 ? lost.size() : 0;
    evicted_ += lost.size();
    if (keep > 0) {
        node.trim(keep);
        watchers_.trimmed(leaf);
        requeue(leaf);
    } else {
        remove(leaf);
    }
}

void RadixTree::remove(NodeIndex index) {
    const NodeIndex parent = nodes_[index].parent;
    victims_.discard(index);
    watchers_.removed(index);
    unlink(index);
    inherit_pins(index, parent);
    nodes_.release(index);
    if (nodes_[parent].is_root()) {
        drop_empty_root(parent);
    } else {
        requeue(parent);
    }
}

void RadixTree::drop_empty_root(NodeIndex index) {
    const Node &root = nodes_[index];
    if (root.is_leaf() && root.locks == 0) {
        const Space space = root.space;
        roots_.erase(space);
        nodes_.release(index);
        retire_if_unused(space);
    }
}

void RadixTree::retire_if_unused(Space space) {
    if (!roots_.contains(space) && watchers_.count_of(space) == 0) {
        retired_.push_back(space);
    }
}

}  // namespace radixrt
