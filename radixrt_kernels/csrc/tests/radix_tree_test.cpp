// Random operations on the radix tree against a map of prefixes, built with sanitizers by scripts/test_native.
// Arguments: number of steps, seed.  Ends with 1 and a message when the tree and the map disagree.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "radixrt/radix_tree.h"

namespace {

using radixrt::EvictionPolicy;
using radixrt::Handle;
using radixrt::RadixTree;
using radixrt::Space;
using Text = std::vector<radixrt::Token>;

void expect(bool holds, const char *what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

class TreeAgainstMap {
public:
    TreeAgainstMap(EvictionPolicy policy, unsigned seed) : tree_(policy), random_(seed) {}

    void step() {
        switch (below(12)) {
            case 0: case 1: case 2: insert(); break;
            case 3: match(); break;
            case 4: lock(); break;
            case 5: unlock(); break;
            case 6: evict(tree_.evict(below(6))); break;
            case 7: pin(); break;
            case 8: watch(); break;
            case 9: unwatch(); break;
            case 10: drop_tail(); break;
            default: below(40) == 0 ? clear() : extend(); break;
        }
        tree_.check_invariants();
        tree_.take_retired();
        for (const auto &[key, length] : tree_.take_changed()) {
            expect(told_.at(key) != length, "a change is a change");
            told_[key] = length;
        }
        for (const auto &[key, watched] : watched_) {
            expect(told_[key] == longest(watched.first, *watched.second), "every change is told");
        }
    }

private:
    struct Held {
        Handle handle;
        Space space;
        Text text;
    };

    std::uint32_t below(std::uint32_t limit) { return random_() % limit; }
    Space any_space() { return below(2); }

    Text any_text() {
        Text text(below(10));
        for (auto &token : text) {
            token = static_cast<radixrt::Token>(below(3));
        }
        return text;
    }

    std::size_t longest(Space space, const Text &text) const {
        std::size_t length = 0;
        while (length < text.size() && stored_.contains({space, Text(text.begin(), text.begin() + static_cast<long>(length) + 1)})) {
            ++length;
        }
        return length;
    }

    void match() {
        const Space space = any_space();
        const Text text = any_text();
        const auto found = tree_.match(tree_.root(space), text);
        expect(found.length == longest(space, text), "match");
        Text slots(found.length);
        tree_.copy_slots(found.node, slots);
        for (std::size_t i = 0; i < slots.size(); ++i) {
            expect(stored_.at({space, Text(text.begin(), text.begin() + static_cast<long>(i) + 1)}) == slots[i], "slots");
        }
    }

    void insert() {
        const Space space = any_space();
        store(space, any_text(), 0, tree_.root(space));
    }

    // Stores text[from:] below `start`, where text[:from] ends.
    radixrt::NodeIndex store(Space space, const Text &text, std::size_t from, radixrt::NodeIndex start) {
        const std::size_t present = longest(space, text);
        Text slots(text.size() - from);
        for (auto &slot : slots) {
            slot = next_slot_++;
        }
        const auto done = tree_.insert(start, std::span(text).subspan(from), slots, below(3));
        expect(done.num_present == present - from, "num_present");
        for (std::size_t i = present; i < text.size(); ++i) {
            stored_[{space, Text(text.begin(), text.begin() + static_cast<long>(i) + 1)}] = slots[i - from];
        }
        return done.node;
    }

    void lock() {
        const Space space = any_space();
        Text text = any_text();
        const auto found = tree_.match(tree_.root(space), text);
        text.resize(found.length);
        tree_.lock(found.node);
        locked_.push_back({tree_.handle(found.node), space, text});
    }

    void unlock() {
        if (!locked_.empty()) {
            std::swap(locked_[below(static_cast<std::uint32_t>(locked_.size()))], locked_.back());
            tree_.unlock(tree_.find(locked_.back().handle));
            locked_.pop_back();
        }
    }

    void extend() {
        if (locked_.empty()) {
            return;
        }
        Held &held = locked_[below(static_cast<std::uint32_t>(locked_.size()))];
        Text text = held.text;
        const Text more = any_text();
        text.insert(text.end(), more.begin(), more.end());
        const auto end = store(held.space, text, held.text.size(), tree_.find(held.handle));
        tree_.lock(end);
        tree_.unlock(tree_.find(held.handle));
        held = {tree_.handle(end), held.space, text};
    }

    void pin() {
        if (below(2) == 0 && !pinned_.empty()) {
            tree_.unpin(pinned_.back());
            pinned_.pop_back();
            return;
        }
        const auto found = tree_.match(tree_.root(any_space()), any_text());
        tree_.pin(found.node);
        pinned_.push_back(tree_.handle(found.node));
    }

    void watch() {
        const auto text = std::make_shared<Text>(any_text());
        const Space space = any_space();
        const std::int64_t key = next_key_++;
        told_[key] = tree_.watch(key, *text, text, space);
        watched_[key] = {space, text};
    }

    void unwatch() {
        if (!watched_.empty()) {
            const std::int64_t key = watched_.begin()->first;
            tree_.unwatch(key);
            watched_.erase(key);
            told_.erase(key);
        }
    }

    void drop_tail() {
        const Space space = any_space();
        const Text text = any_text();
        evict(tree_.drop_tail(tree_.find_root(space), text, below(6)));
    }

    void evict(const std::vector<radixrt::Slot> &freed) {
        const std::set<radixrt::Slot> gone(freed.begin(), freed.end());
        expect(gone.size() == freed.size(), "a slot is freed once");
        const std::size_t before = stored_.size();
        std::erase_if(stored_, [&](const auto &entry) { return gone.contains(entry.second); });
        expect(before - stored_.size() == freed.size(), "what is freed was stored");
        for (const Held &held : locked_) {
            expect(longest(held.space, held.text) == held.text.size(), "a locked prefix survives");
        }
    }

    void clear() {
        tree_.clear();
        stored_.clear();
        locked_.clear();
    }

    RadixTree tree_;
    std::mt19937 random_;
    std::map<std::pair<Space, Text>, radixrt::Slot> stored_;
    std::vector<Held> locked_;
    std::vector<Handle> pinned_;
    std::map<std::int64_t, std::pair<Space, std::shared_ptr<Text>>> watched_;
    std::map<std::int64_t, std::size_t> told_;
    radixrt::Slot next_slot_ = 0;
    std::int64_t next_key_ = 0;
};

}  // namespace

int main(int argc, char **argv) {
    const long num_steps = argc > 1 ? std::atol(argv[1]) : 20000;
    const auto seed = static_cast<unsigned>(argc > 2 ? std::atol(argv[2]) : 1);
    using Kind = EvictionPolicy::Kind;
    for (const Kind kind : {Kind::lru, Kind::lfu, Kind::slru, Kind::fifo, Kind::mru, Kind::filo, Kind::priority, Kind::cost}) {
        TreeAgainstMap machine({kind, kind == Kind::slru ? 2 : 16384}, seed);
        long step = 0;
        try {
            for (; step < num_steps; ++step) {
                machine.step();
            }
        } catch (const std::exception &error) {
            std::printf("policy %d, seed %u, step %ld: %s\n", static_cast<int>(kind), seed, step, error.what());
            return 1;
        }
    }
    return 0;
}
