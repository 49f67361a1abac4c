// The tokens of a vocabulary as a trie over their bytes, walked together with an automaton over bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace radixrt {

// A deterministic automaton over bytes, its edges in flat tables: state s has the edges first[s] .. first[s + 1], sorted and
// disjoint ranges of bytes.  A text must not end where `live` is 0.
class ByteAutomaton {
public:
    static constexpr std::int32_t dead = -1;

    // Copies the tables; std::invalid_argument when they contradict each other.
    ByteAutomaton(std::span<const std::int32_t> first, std::span<const std::uint8_t> low, std::span<const std::uint8_t> high,
                  std::span<const std::int32_t> target, std::span<const std::uint8_t> live);

    std::size_t num_states() const noexcept { return live_.size(); }
    bool is_live(std::int32_t state) const noexcept { return live_[static_cast<std::size_t>(state)] != 0; }

    std::int32_t step(std::int32_t state, std::uint8_t byte) const noexcept {
        const auto at = static_cast<std::size_t>(state);
        for (auto edge = static_cast<std::size_t>(first_[at]), end = static_cast<std::size_t>(first_[at + 1]); edge < end; ++edge) {
            if (byte <= edges_[edge].high) {
                return byte >= edges_[edge].low ? edges_[edge].target : dead;
            }
        }
        return dead;
    }

    // Writes where each byte leads.
    void expand(std::int32_t state, std::array<std::int32_t, 256> &moves) const noexcept {
        moves.fill(dead);
        const auto at = static_cast<std::size_t>(state);
        for (auto edge = static_cast<std::size_t>(first_[at]), end = static_cast<std::size_t>(first_[at + 1]); edge < end; ++edge) {
            std::fill(moves.begin() + edges_[edge].low, moves.begin() + edges_[edge].high + 1, edges_[edge].target);
        }
    }

private:
    struct Edge {
        std::int32_t target;
        std::uint8_t low;
        std::uint8_t high;
    };
    std::vector<std::int32_t> first_;
    std::vector<Edge> edges_;
    std::vector<std::uint8_t> live_;
};

class TokenTrie {
public:
    // Token i is spelled text[ends[i - 1] .. ends[i]] and has the id tokens[i]; in order of spelling, none empty.
    TokenTrie(std::span<const std::uint8_t> text, std::span<const std::int32_t> ends, std::span<const std::int32_t> tokens);

    // Writes the packed mask of the tokens that lead from a state to a live one.
    void fill_mask(const ByteAutomaton &automaton, std::int32_t state, std::span<std::int32_t> row) const;

    // Writes the packed mask of the tokens that a text starts with; returns whether there are tokens that start with all of it and are
    // longer.
    bool fill_starts(std::span<const std::uint8_t> text, std::span<std::int32_t> row) const;

    // Returns the live states that one token leads to from a state, each with its first token in order of spelling.
    std::vector<std::pair<std::int32_t, std::int32_t>> reach(const ByteAutomaton &automaton, std::int32_t state) const;

    std::size_t memory_bytes() const noexcept { return nodes_.capacity() * sizeof(Node); }

private:
    static constexpr std::int32_t no_token = -1;

    // Nodes are in preorder: the subtree of node i is i .. i + size.
    struct Node {
        std::uint32_t size;
        std::int32_t token;
        std::uint16_t depth;
        std::uint8_t byte;
    };

    // Empties a row; std::invalid_argument where it is too short.
    void clear(std::span<std::int32_t> row) const;
    // Allows the tokens that are spelled as one that is allowed.
    void allow_twins(std::span<std::int32_t> row) const noexcept;

    // Calls visit(token or no_token, state) for every node whose bytes lead somewhere from a state.
    template <typename Visit>
    void walk(const ByteAutomaton &automaton, std::int32_t state, Visit &&visit) const;

    std::vector<Node> nodes_;
    std::array<std::uint32_t, 256> roots_{};  // the node of each first byte, nodes_.size() for none
    std::vector<std::pair<std::int32_t, std::int32_t>> twins_;  // the token of a node, and another one spelled the same
    std::size_t max_depth_ = 0;
    std::int32_t max_token_ = -1;
};

}  // namespace radixrt
