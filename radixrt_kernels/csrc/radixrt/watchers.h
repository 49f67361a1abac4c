// Sequences that wait, and how much of each the tree holds: kept up to date from changes of the tree, never by a sweep.
//
// A watcher sits at the place where its match ends, which is a node and a length, and is filed there under the token it
// would need next.  Only what happens at that place can change its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "radixrt/node_arena.h"

namespace radixrt {

class RadixTree;
struct Watcher;

// The watchers whose match ends `length` tokens below the root inside the edge of `node` (or at its end), by next token.
// The place of a namespace of which nothing is matched has no node, because roots come and go.
struct Place {
    NodeIndex node;
    std::uint32_t length;
    std::unordered_map<Token, std::vector<Watcher *>> waiting;
};

struct Watcher {
    std::int64_t key;
    std::span<const Token> tokens;
    std::shared_ptr<void> owner;  // keeps `tokens` alive
    Space space;
    Place *place = nullptr;
    std::uint32_t told = 0;
    std::uint32_t position = 0;  // in its group of `place`
    std::uint32_t changed_position = not_changed;

    static constexpr std::uint32_t not_changed = 0xFFFFFFFF;

    std::uint32_t length() const noexcept { return place->length; }
    // -1 for a sequence that is stored whole.
    Token next_token() const noexcept { return length() < tokens.size() ? tokens[length()] : -1; }
};

class Watchers {
public:
    explicit Watchers(const RadixTree &tree) noexcept : tree_(tree) {}

    std::uint32_t add(std::int64_t key, std::span<const Token> tokens, std::shared_ptr<void> owner, Space space, NodeIndex root);
    // Returns whether the key was watched, and in which namespace.
    std::pair<bool, Space> discard(std::int64_t key);
    std::vector<std::pair<std::int64_t, std::uint32_t>> take_changed();
    const Watcher *find(std::int64_t key) const;
    std::size_t count_of(Space space) const;
    std::size_t size() const noexcept { return watchers_.size(); }
    const auto &all() const noexcept { return watchers_; }

    // What the tree reports.
    void added(NodeIndex parent, NodeIndex child);       // a child with a new first token
    void grew(NodeIndex node, std::uint32_t old_end);    // an edge has become longer
    void split(NodeIndex upper, NodeIndex lower);        // `upper` has taken the head of the edge of `lower`
    void trimmed(NodeIndex node);                        // an edge has lost its tail
    void removed(NodeIndex node);                        // a leaf is about to go
    void cleared();                                      // the tree is empty

private:
    using Places = std::map<std::uint32_t, Place>;  // by length; a map, because watchers point into it

    void wake(Place *place, NodeIndex node, Token token);
    void match_on(Watcher &watcher, NodeIndex node, std::uint32_t length);
    void sit(Watcher &watcher, NodeIndex node, std::uint32_t length);
    void leave(Watcher &watcher);
    void retreat(Place &place, NodeIndex node, std::uint32_t length);
    void mark_changed(Watcher &watcher);
    void unmark_changed(Watcher &watcher);

    const RadixTree &tree_;
    std::unordered_map<std::int64_t, Watcher> watchers_;
    std::unordered_map<NodeIndex, Places> places_;
    std::unordered_map<Space, Place> unmatched_;
    std::unordered_map<Space, std::size_t> num_in_space_;
    std::vector<Watcher *> changed_;
};

}  // namespace radixrt
