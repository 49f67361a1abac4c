#include "radixrt/token_trie.h"

#include <algorithm>
#include <stdexcept>

namespace radixrt {

ByteAutomaton::ByteAutomaton(std::span<const std::int32_t> first, std::span<const std::uint8_t> low, std::span<const std::uint8_t> high,
                             std::span<const std::int32_t> target, std::span<const std::uint8_t> live)
    : first_(first.begin(), first.end()), live_(live.begin(), live.end()) {
    const auto num_edges = static_cast<std::int32_t>(target.size());
    bool sound = first.size() == live.size() + 1 && low.size() == target.size() && high.size() == target.size() && first.front() == 0 &&
                 first.back() == num_edges && std::is_sorted(first.begin(), first.end());
    for (std::size_t state = 0; sound && state < live.size(); ++state) {
        for (auto edge = static_cast<std::size_t>(first[state]); edge < static_cast<std::size_t>(first[state + 1]); ++edge) {
            const bool follows = edge > static_cast<std::size_t>(first[state]);
            sound = sound && low[edge] <= high[edge] && (!follows || high[edge - 1] < low[edge]) && target[edge] >= 0 &&
                    static_cast<std::size_t>(target[edge]) < live.size();
            edges_.push_back({target[edge], low[edge], high[edge]});
        }
    }
    if (!sound) {
        throw std::invalid_argument("[ByteAutomaton] the tables contradict each other");
    }
}

TokenTrie::TokenTrie(std::span<const std::uint8_t> text, std::span<const std::int32_t> ends, std::span<const std::int32_t> tokens)
    : tokens_(tokens.begin(), tokens.end()) {
    if (ends.size() != tokens.size() || (!ends.empty() && static_cast<std::size_t>(ends.back()) != text.size())) {
        throw std::invalid_argument("[TokenTrie] one end and one id a token");
    }
    std::vector<std::size_t> path;  // the open nodes, from the root
    std::span<const std::uint8_t> before;
    std::int32_t start = 0;
    const auto close = [&](std::size_t depth) {
        for (; path.size() > depth; path.pop_back()) {
            nodes_[path.back()].size = static_cast<std::uint32_t>(nodes_.size() - path.back());
        }
    };
    for (std::size_t i = 0; i < ends.size(); ++i) {
        if (ends[i] <= start || static_cast<std::size_t>(ends[i]) > text.size() || ends[i] - start > 65535 || tokens[i] < 0) {
            throw std::invalid_argument("[TokenTrie] tokens have 1 to 65535 bytes and ids from 0");
        }
        const auto spelled = text.subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(ends[i] - start));
        const auto common = static_cast<std::size_t>(std::mismatch(spelled.begin(), spelled.end(), before.begin(), before.end()).first - spelled.begin());
        if (common < before.size() && (common == spelled.size() || spelled[common] < before[common])) {
            throw std::invalid_argument("[TokenTrie] tokens come in order of their spelling");
        }
        close(common);
        for (std::size_t depth = common; depth < spelled.size(); ++depth) {
            path.push_back(nodes_.size());
            nodes_.push_back({0, static_cast<std::uint32_t>(i), static_cast<std::uint16_t>(depth), spelled[depth]});
        }
        max_depth_ = std::max(max_depth_, spelled.size());
        max_token_ = std::max(max_token_, tokens[i]);
        before = spelled;
        start = ends[i];
    }
    close(0);
    nodes_.push_back({1, static_cast<std::uint32_t>(tokens_.size()), 0, 0});
    nodes_.shrink_to_fit();
}

template <typename Visit>
void TokenTrie::walk(const ByteAutomaton &automaton, std::int32_t state, Visit &&visit) const {
    if (state < 0 || static_cast<std::size_t>(state) >= automaton.num_states()) {
        throw std::invalid_argument("[TokenTrie] there is no such state");
    }
    std::vector<std::int32_t> states(max_depth_ + 1);
    states[0] = state;
    for (std::size_t i = 0; i + 1 < nodes_.size();) {
        const Node &node = nodes_[i];
        const std::int32_t next = automaton.step(states[node.depth], node.byte);
        if (next == ByteAutomaton::dead) {
            i += node.size;
            continue;
        }
        states[node.depth + std::size_t{1}] = next;
        // Tokens that end in this node lie before those of its first child.
        if (nodes_[i + 1].first_token > node.first_token && automaton.is_live(next)) {
            visit(node, nodes_[i + 1].first_token, next);
        }
        ++i;
    }
}

void TokenTrie::fill_mask(const ByteAutomaton &automaton, std::int32_t state, std::span<std::int32_t> row) const {
    if (static_cast<std::size_t>(max_token_ + 1) > row.size() * 32) {
        throw std::invalid_argument("[TokenTrie] the row is too short for the vocabulary");
    }
    std::fill(row.begin(), row.end(), 0);
    walk(automaton, state, [&](const Node &node, std::uint32_t end, std::int32_t) {
        for (std::uint32_t i = node.first_token; i < end; ++i) {
            const auto token = static_cast<std::uint32_t>(tokens_[i]);
            row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | (std::uint32_t{1} << (token % 32)));
        }
    });
}

std::vector<std::pair<std::int32_t, std::int32_t>> TokenTrie::reach(const ByteAutomaton &automaton, std::int32_t state) const {
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    std::vector<bool> seen(automaton.num_states());
    walk(automaton, state, [&](const Node &node, std::uint32_t, std::int32_t next) {
        if (!seen[static_cast<std::size_t>(next)]) {
            seen[static_cast<std::size_t>(next)] = true;
            found.emplace_back(next, tokens_[node.first_token]);
        }
    });
    return found;
}

}  // namespace radixrt
