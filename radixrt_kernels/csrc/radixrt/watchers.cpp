#include "radixrt/watchers.h"

#include <tuple>
#include <utility>

#include "radixrt/radix_tree.h"

namespace radixrt {

std::uint32_t Watchers::add(
    std::int64_t key, std::span<const Token> tokens, std::shared_ptr<void> owner, Space space, NodeIndex root
) {
    const auto [at, is_new] = watchers_.try_emplace(key, Watcher{key, tokens, std::move(owner), space});
    if (!is_new) {
        throw InvariantError("[watch] key is watched already");
    }
    Watcher &watcher = at->second;
    ++num_in_space_[space];
    match_on(watcher, root, 0);
    unmark_changed(watcher);
    return watcher.told = watcher.length();
}

std::pair<bool, Space> Watchers::discard(std::int64_t key) {
    const auto at = watchers_.find(key);
    if (at == watchers_.end()) {
        return {false, 0};
    }
    const Space space = at->second.space;
    unmark_changed(at->second);
    leave(at->second);
    watchers_.erase(at);
    if (--num_in_space_[space] == 0) {
        num_in_space_.erase(space);
    }
    return {true, space};
}

std::vector<std::pair<std::int64_t, std::uint32_t>> Watchers::take_changed() {
    std::vector<std::pair<std::int64_t, std::uint32_t>> changed;
    for (Watcher *watcher : changed_) {
        watcher->changed_position = Watcher::not_changed;
        if (watcher->length() != watcher->told) {
            watcher->told = watcher->length();
            changed.emplace_back(watcher->key, watcher->told);
        }
    }
    changed_.clear();
    return changed;
}

const Watcher *Watchers::find(std::int64_t key) const {
    const auto at = watchers_.find(key);
    return at == watchers_.end() ? nullptr : &at->second;
}

std::size_t Watchers::count_of(Space space) const {
    const auto at = num_in_space_.find(space);
    return at == num_in_space_.end() ? 0 : at->second;
}

void Watchers::added(NodeIndex parent, NodeIndex child) {
    if (watchers_.empty()) {
        return;
    }
    const Node &above = tree_.node(parent);
    Place *place = nullptr;
    if (above.is_root()) {
        const auto at = unmatched_.find(above.space);
        place = at == unmatched_.end() ? nullptr : &at->second;
    } else if (const auto at = places_.find(parent); at != places_.end()) {
        const auto end = at->second.find(above.end());
        place = end == at->second.end() ? nullptr : &end->second;
    }
    wake(place, parent, tree_.node(child).key()[0]);
}

void Watchers::grew(NodeIndex node, std::uint32_t old_end) {
    const auto at = places_.find(node);
    if (at == places_.end()) {
        return;
    }
    const auto end = at->second.find(old_end);
    if (end != at->second.end()) {
        wake(&end->second, node, tree_.node(node).key()[old_end - tree_.node(node).start]);
    }
}

void Watchers::split(NodeIndex upper, NodeIndex lower) {
    const auto at = places_.find(lower);
    if (at == places_.end()) {
        return;
    }
    Places below = std::move(at->second);
    places_.erase(at);
    const auto first_below = below.upper_bound(tree_.node(upper).end());
    Places above;
    while (below.begin() != first_below) {
        auto moved = below.extract(below.begin());
        moved.mapped().node = upper;
        above.insert(above.end(), std::move(moved));
    }
    if (!above.empty()) {
        places_.emplace(upper, std::move(above));
    }
    if (!below.empty()) {
        places_.emplace(lower, std::move(below));
    }
}

void Watchers::trimmed(NodeIndex node) {
    const std::uint32_t end = tree_.node(node).end();
    for (auto at = places_.find(node); at != places_.end() && at->second.rbegin()->first > end; at = places_.find(node)) {
        retreat(at->second.rbegin()->second, node, end);
    }
}

void Watchers::removed(NodeIndex node) {
    const Node &leaf = tree_.node(node);
    for (auto at = places_.find(node); at != places_.end(); at = places_.find(node)) {
        retreat(at->second.begin()->second, leaf.parent, leaf.start);
    }
}

void Watchers::cleared() {
    places_.clear();
    unmatched_.clear();
    for (auto &[key, watcher] : watchers_) {
        sit(watcher, no_node, 0);
    }
}

void Watchers::wake(Place *place, NodeIndex node, Token token) {
    if (place == nullptr) {
        return;
    }
    const auto group = place->waiting.find(token);
    if (group == place->waiting.end()) {
        return;
    }
    const std::uint32_t length = place->length;
    const std::vector<Watcher *> woken = group->second;
    for (Watcher *watcher : woken) {
        leave(*watcher);  // the last one takes the place with it
        match_on(*watcher, node, length);
    }
}

void Watchers::match_on(Watcher &watcher, NodeIndex node, std::uint32_t length) {
    if (node != no_node) {
        std::tie(node, length) = tree_.advance(node, length, watcher.tokens);
    }
    sit(watcher, node, length);
}

void Watchers::sit(Watcher &watcher, NodeIndex node, std::uint32_t length) {
    if (node == no_node || tree_.node(node).is_root()) {
        watcher.place = &unmatched_.try_emplace(watcher.space, Place{no_node, 0, {}}).first->second;
    } else {
        watcher.place = &places_[node].try_emplace(length, Place{node, length, {}}).first->second;
    }
    std::vector<Watcher *> &group = watcher.place->waiting[watcher.next_token()];
    watcher.position = static_cast<std::uint32_t>(group.size());
    group.push_back(&watcher);
    mark_changed(watcher);
}

void Watchers::leave(Watcher &watcher) {
    Place &place = *watcher.place;
    const auto at = place.waiting.find(watcher.next_token());
    std::vector<Watcher *> &group = at->second;
    group[watcher.position] = group.back();
    group[watcher.position]->position = watcher.position;
    group.pop_back();
    watcher.place = nullptr;
    if (!group.empty()) {
        return;
    }
    place.waiting.erase(at);
    if (!place.waiting.empty()) {
        return;
    }
    if (place.node == no_node) {
        unmatched_.erase(watcher.space);
        return;
    }
    const auto places = places_.find(place.node);
    places->second.erase(places->second.find(place.length));
    if (places->second.empty()) {
        places_.erase(places);
    }
}

void Watchers::retreat(Place &place, NodeIndex node, std::uint32_t length) {
    std::vector<Watcher *> watchers;
    for (const auto &[token, group] : place.waiting) {
        watchers.insert(watchers.end(), group.begin(), group.end());
    }
    for (Watcher *watcher : watchers) {
        leave(*watcher);
        sit(*watcher, node, length);
    }
}

void Watchers::mark_changed(Watcher &watcher) {
    if (watcher.changed_position == Watcher::not_changed) {
        watcher.changed_position = static_cast<std::uint32_t>(changed_.size());
        changed_.push_back(&watcher);
    }
}

void Watchers::unmark_changed(Watcher &watcher) {
    if (watcher.changed_position != Watcher::not_changed) {
        changed_[watcher.changed_position] = changed_.back();
        changed_[watcher.changed_position]->changed_position = watcher.changed_position;
        changed_.pop_back();
        watcher.changed_position = Watcher::not_changed;
    }
}

}  // namespace radixrt
