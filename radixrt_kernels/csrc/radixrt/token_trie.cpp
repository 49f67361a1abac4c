#include "radixrt/token_trie.h"

#include <algorithm>
#include <array>
#include <memory>
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

namespace {

void allow(std::span<std::int32_t> row, std::uint32_t token, std::uint32_t bit) noexcept {
    row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | (bit << (token % 32)));
}

}  // namespace

TokenTrie::TokenTrie(std::span<const std::uint8_t> text, std::span<const std::int32_t> ends, std::span<const std::int32_t> tokens) {
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
            nodes_.push_back({0, no_token, static_cast<std::uint16_t>(depth), spelled[depth]});
        }
        if (nodes_.back().token == no_token) {
            nodes_.back().token = tokens[i];
        } else {
            twins_.emplace_back(nodes_.back().token, tokens[i]);
        }
        max_depth_ = std::max(max_depth_, spelled.size());
        max_token_ = std::max(max_token_, tokens[i]);
        before = spelled;
        start = ends[i];
    }
    close(0);
    nodes_.shrink_to_fit();
    roots_.fill(static_cast<std::uint32_t>(nodes_.size()));
    for (std::uint32_t i = 0; i < nodes_.size(); i += nodes_[i].size) {
        roots_[nodes_[i].byte] = i;
    }
}

template <typename Visit>
void TokenTrie::walk(const ByteAutomaton &automaton, std::int32_t state, Visit &&visit) const {
    if (state < 0 || static_cast<std::size_t>(state) >= automaton.num_states()) {
        throw std::invalid_argument("[TokenTrie] there is no such state");
    }
    // The state behind the bytes of each open node, and all its moves once a subtree is large enough to want them.  Siblings
    // mostly lead to the same state, whose moves are then there already.
    struct Place {
        std::int32_t state;
        std::int32_t expanded;
        std::array<std::int32_t, 256> moves;
    };
    constexpr std::uint32_t worth_expanding = 12;
    const std::unique_ptr<Place[]> places(new Place[max_depth_ + 1]);
    for (std::size_t depth = 0; depth <= max_depth_; ++depth) {
        places[depth].expanded = ByteAutomaton::dead;
    }
    const auto enter = [&](Place &place, std::int32_t next, std::uint32_t size) {
        place.state = next;
        if (static_cast<int>(size >= worth_expanding) & static_cast<int>(place.expanded != next)) {
            automaton.expand(next, place.moves);
            place.expanded = next;
        }
    };
    enter(places[0], state, worth_expanding);
    // Most nodes are alike in nothing but that few are skipped: there is no branch here on what kind of node it is.
    for (std::size_t i = 0, end = nodes_.size(); i < end;) {
        const Node &node = nodes_[i];
        const Place &place = places[node.depth];
        const std::int32_t next = place.expanded == place.state ? place.moves[node.byte] : automaton.step(place.state, node.byte);
        if (next == ByteAutomaton::dead) {
            i += node.size;
            continue;
        }
        visit(node.token, next);
        enter(places[node.depth + std::size_t{1}], next, node.size);
        ++i;
    }
}

void TokenTrie::clear(std::span<std::int32_t> row) const {
    if (static_cast<std::size_t>(max_token_) + 1 > row.size() * 32) {
        throw std::invalid_argument("[TokenTrie] the row is too short for the vocabulary");
    }
    std::fill(row.begin(), row.end(), 0);
}

void TokenTrie::allow_twins(std::span<std::int32_t> row) const noexcept {
    for (const auto &[token, twin] : twins_) {
        allow(row, static_cast<std::uint32_t>(twin), (static_cast<std::uint32_t>(row[static_cast<std::size_t>(token) / 32]) >> (token % 32)) & 1);
    }
}

void TokenTrie::fill_mask(const ByteAutomaton &automaton, std::int32_t state, std::span<std::int32_t> row) const {
    clear(row);
    if (nodes_.empty()) {
        return;
    }
    walk(automaton, state, [&](std::int32_t token, std::int32_t next) {
        const bool allowed = static_cast<int>(token != no_token) & static_cast<int>(automaton.is_live(next));
        allow(row, static_cast<std::uint32_t>(std::max(token, 0)), allowed ? 1 : 0);
    });
    allow_twins(row);
}

bool TokenTrie::fill_starts(std::span<const std::uint8_t> text, std::span<std::int32_t> row) const {
    clear(row);
    if (text.empty()) {
        return !nodes_.empty();
    }
    std::size_t at = roots_[text.front()];
    std::size_t end = nodes_.size();
    bool is_longer = false;
    for (std::size_t depth = 0; at < end; ++depth) {
        const Node &node = nodes_[at];
        if (node.token != no_token) {
            allow(row, static_cast<std::uint32_t>(node.token), 1);
        }
        if (depth + 1 == text.size()) {
            is_longer = node.size > 1;
            break;
        }
        end = at + node.size;
        for (++at; at < end && nodes_[at].byte != text[depth + 1];) {
            at += nodes_[at].size;
        }
    }
    allow_twins(row);
    return is_longer;
}

std::vector<std::pair<std::int32_t, std::int32_t>> TokenTrie::reach(const ByteAutomaton &automaton, std::int32_t state) const {
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    std::vector<bool> seen(automaton.num_states());
    walk(automaton, state, [&](std::int32_t token, std::int32_t next) {
        if (token != no_token && automaton.is_live(next) && !seen[static_cast<std::size_t>(next)]) {
            seen[static_cast<std::size_t>(next)] = true;
            found.emplace_back(next, token);
        }
    });
    return found;
}

}  // namespace radixrt
