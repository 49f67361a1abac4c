// Pins: paths that are evicted last.  A pin is counted on every node of its path, and follows its end when that is cut.
#include "radixrt/radix_tree.h"

namespace radixrt {

void RadixTree::pin(NodeIndex node) {
    if (nodes_[node].is_root()) {
        return;
    }
    const Handle handle = nodes_.handle(node);
    ++pins_at_[node][handle];
    pin_ends_[handle] = node;
    count_pins(node, +1);
}

void RadixTree::unpin(Handle handle) {
    const auto end = pin_ends_.find(handle);
    if (end == pin_ends_.end()) {
        return;
    }
    const NodeIndex node = end->second;
    const auto at = pins_at_.find(node);
    if (--at->second[handle] == 0) {
        at->second.erase(handle);
        pin_ends_.erase(end);
        if (at->second.empty()) {
            pins_at_.erase(at);
        }
    }
    count_pins(node, -1);
}

void RadixTree::count_pins(NodeIndex node, int count) {
    for (NodeIndex at = node; !nodes_[at].is_root(); at = nodes_[at].parent) {
        Node &held = nodes_[at];
        const bool was_pinned = held.pins > 0;
        held.pins += static_cast<std::uint32_t>(count);
        if (held.locks == 0 && was_pinned != (held.pins > 0)) {
            pinned_ = was_pinned ? pinned_ - held.size : pinned_ + held.size;
        }
        requeue(at);
    }
}

// What is left of a pinned path ends at its parent.
void RadixTree::inherit_pins(NodeIndex node, NodeIndex parent) {
    const auto at = pins_at_.find(node);
    if (at == pins_at_.end()) {
        return;
    }
    for (const auto &[handle, count] : at->second) {
        if (nodes_[parent].is_root()) {
            pin_ends_.erase(handle);
        } else {
            pins_at_[parent][handle] += count;
            pin_ends_[handle] = parent;
        }
    }
    pins_at_.erase(node);
}

bool RadixTree::has_pin_ends(NodeIndex node) const { return pins_at_.contains(node); }

}  // namespace radixrt
