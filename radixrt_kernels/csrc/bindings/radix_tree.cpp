// The radix tree: namespaces are any hashable objects here, tokens and slots go in and out as array("i").
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nanobind/stl/string.h>

#include "bindings.h"
#include "radixrt/radix_tree.h"
#include "token_buffer.h"

namespace nb = nanobind;
using namespace nb::literals;
using radixrt::Handle;
using radixrt::NodeIndex;
using radixrt::Space;

namespace {

constexpr std::size_t num_first_tokens = 8;

// A named tuple made by the C API: a tenth of the time of a class instance.
class Record {
public:
    template <std::size_t count>
    Record(nb::module_ &m, const char *name, const std::array<const char *, count> &fields) {
        std::vector<PyStructSequence_Field> members;
        members.reserve(count + 1);
        for (const char *field : fields) {
            members.push_back({field, nullptr});
        }
        members.push_back({nullptr, nullptr});
        PyStructSequence_Desc desc{name, nullptr, members.data(), static_cast<int>(count)};
        type_ = PyStructSequence_NewType(&desc);
        if (type_ == nullptr) {
            throw nb::python_error();
        }
        m.attr(std::strrchr(name, '.') + 1) = nb::handle(reinterpret_cast<PyObject *>(type_));
    }

    template <class... Values>
    nb::object operator()(const Values &...values) const {
        nb::object record = nb::steal(PyStructSequence_New(type_));
        Py_ssize_t at = 0;
        (PyStructSequence_SetItem(record.ptr(), at++, nb::cast(values).release().ptr()), ...);
        return record;
    }

private:
    PyTypeObject *type_;
};

// What the module makes; held until the process ends.
struct Types {
    Record match, insertion, stats;
    nb::object one_item;  // array("i", [0])
};
const Types *types = nullptr;

template <class Fill>
nb::object make_array(std::size_t size, const Fill &fill) {
    nb::object made = nb::steal(PySequence_Repeat(types->one_item.ptr(), static_cast<Py_ssize_t>(size)));
    if (!made.is_valid()) {
        throw nb::python_error();
    }
    if (size > 0) {
        Py_buffer view;
        if (PyObject_GetBuffer(made.ptr(), &view, PyBUF_WRITABLE) != 0) {
            throw nb::python_error();
        }
        fill(std::span<std::int32_t>(static_cast<std::int32_t *>(view.buf), size));
        PyBuffer_Release(&view);
    }
    return made;
}

nb::object to_array(const std::vector<std::int32_t> &values) {
    return make_array(values.size(), [&](std::span<std::int32_t> out) { std::copy(values.begin(), values.end(), out.begin()); });
}

radixrt::EvictionPolicy policy_of(const std::string &name, std::int64_t protected_threshold, std::int64_t attention_length) {
    using Kind = radixrt::EvictionPolicy::Kind;
    static const std::map<std::string, Kind> kinds{{"lru", Kind::lru},   {"lfu", Kind::lfu},   {"slru", Kind::slru},         {"fifo", Kind::fifo},
                                                   {"mru", Kind::mru},   {"filo", Kind::filo}, {"priority", Kind::priority}, {"cost", Kind::cost}};
    const auto at = kinds.find(name);
    if (at == kinds.end()) {
        throw nb::value_error("[RadixTree] unknown eviction policy");
    }
    return {at->second, at->second == Kind::slru ? protected_threshold : attention_length};
}

class BoundTree {
public:
    explicit BoundTree(radixrt::EvictionPolicy policy) : tree_(policy), namespaces_{nb::none()} {}

    nb::object match(nb::handle tokens, nb::handle name, nb::handle start) {
        const TokenBuffer buffer(tokens, "match");
        const radixrt::Match found = tree_.match(begin(name, start), buffer.all());
        forget_unused();
        return types->match(tree_.handle(found.node), slots_of(found.node, found.length));
    }

    std::size_t match_length(nb::handle tokens, nb::handle name, nb::handle start) const {
        const TokenBuffer buffer(tokens, "match_length");
        return tree_.match_length(start.is_none() ? find_root(name) : node(start), buffer.all());
    }

    nb::object insert(nb::handle tokens, nb::handle slots, nb::handle name, nb::handle start, std::int64_t priority) {
        const TokenBuffer key(tokens, "insert"), values(slots, "insert");
        const radixrt::Insertion done = tree_.insert(begin(name, start), key.all(), values.all(), priority);
        forget_unused();
        return types->insertion(tree_.handle(done.node), slots_of(done.node, key.all().size()), done.num_present);
    }

    void lock(nb::handle handle) { tree_.lock(node(handle)); }
    void unlock(nb::handle handle) {
        tree_.unlock(node(handle));
        forget_unused();
    }
    void pin(nb::handle handle) { tree_.pin(node(handle)); }
    void unpin(Handle handle) { tree_.unpin(handle); }

    nb::object evict(std::int64_t num_slots) {
        const nb::object freed = to_array(tree_.evict(num_slots > 0 ? static_cast<std::size_t>(num_slots) : 0));
        forget_unused();
        return freed;
    }

    nb::object drop_tail(nb::handle tokens, nb::handle name, std::size_t keep) {
        const TokenBuffer buffer(tokens, "drop_tail");
        const nb::object freed = to_array(tree_.drop_tail(find_root(name), buffer.all(), keep));
        forget_unused();
        return freed;
    }

    void clear() {
        tree_.clear();
        forget_unused();
    }

    std::uint32_t watch(std::int64_t key, nb::handle tokens, nb::handle name) {
        auto buffer = std::make_shared<TokenBuffer>(tokens, "watch");
        const auto span = buffer->all();
        return tree_.watch(key, span, std::move(buffer), space(name));
    }

    void unwatch(std::int64_t key) {
        tree_.unwatch(key);
        forget_unused();
    }

    nb::list take_changed() {
        nb::list changed;
        for (const auto &[key, length] : tree_.take_changed()) {
            changed.append(nb::make_tuple(key, length));
        }
        return changed;
    }

    nb::list watched_path(std::int64_t key) const {
        nb::list path;
        for (const Handle handle : tree_.watched_path(key)) {
            path.append(handle);
        }
        return path;
    }

    nb::tuple divergence(nb::handle tokens, nb::handle name, std::size_t limit) const {
        const TokenBuffer buffer(tokens, "divergence");
        const auto [matched, following] = tree_.divergence(find_root(name), buffer.all(), limit);
        nb::list shown;
        for (const std::int32_t token : following) {
            shown.append(token);
        }
        return nb::make_tuple(matched, shown);
    }

    nb::list describe(nb::handle name, std::size_t depth, std::size_t min_tokens) const {
        nb::list shown;
        for (const Space space : tree_.spaces()) {
            const NodeIndex root = tree_.find_root(space);
            if (name.is_none() || find_root(name) == root) {
                for (const radixrt::NodeView &view : tree_.describe(root, depth, min_tokens)) {
                    shown.append(describe_node(view, root));
                }
            }
        }
        return shown;
    }

    nb::object stats() const {
        const radixrt::TreeStats stats = tree_.stats();
        return types->stats(stats.evictable, stats.locked, stats.num_nodes, stats.evicted, stats.pinned);
    }

    nb::object stored_slots() const { return to_array(tree_.stored_slots()); }
    void check_invariants() const { tree_.check_invariants(); }
    std::size_t memory_bytes() const { return tree_.memory_bytes(); }
    std::size_t num_namespaces() const { return ids_.size() + 1; }

private:
    static constexpr Space default_space = 0;  // of namespace None, which is never given to another

    NodeIndex node(nb::handle handle) const {
        const Handle value = PyLong_AsLongLong(handle.ptr());
        if (value == -1 && PyErr_Occurred() != nullptr) {
            throw nb::python_error();
        }
        const NodeIndex index = tree_.find(value);
        if (index == radixrt::no_node) {
            throw nb::key_error("handle is void");
        }
        return index;
    }

    NodeIndex begin(nb::handle name, nb::handle start) { return start.is_none() ? tree_.root(space(name)) : node(start); }

    NodeIndex find_root(nb::handle name) const {
        if (name.is_none()) {
            return tree_.find_root(default_space);
        }
        const nb::handle id = find_id(name);
        return id.is_valid() ? tree_.find_root(nb::cast<Space>(id)) : radixrt::no_node;
    }

    nb::handle find_id(nb::handle name) const {
        PyObject *id = PyDict_GetItemWithError(ids_.ptr(), name.ptr());
        if (id == nullptr && PyErr_Occurred() != nullptr) {
            throw nb::python_error();
        }
        return id;
    }

    Space space(nb::handle name) {
        if (name.is_none()) {
            return default_space;
        }
        if (const nb::handle id = find_id(name); id.is_valid()) {
            return nb::cast<Space>(id);
        }
        auto made = static_cast<Space>(namespaces_.size());
        if (unused_.empty()) {
            namespaces_.push_back(nb::borrow(name));
        } else {
            made = unused_.back();
            unused_.pop_back();
            namespaces_[made] = nb::borrow(name);
        }
        ids_[name] = made;
        return made;
    }

    void forget_unused() {
        if (!tree_.has_retired()) {
            return;
        }
        for (const Space space : tree_.take_retired()) {
            if (space != default_space) {
                nb::del(ids_[namespaces_[space]]);
                namespaces_[space] = nb::none();
                unused_.push_back(space);
            }
        }
    }

    nb::object slots_of(NodeIndex node, std::size_t count) const {
        return make_array(count, [&](std::span<std::int32_t> out) { tree_.copy_slots(node, out); });
    }

    nb::dict describe_node(const radixrt::NodeView &view, NodeIndex root) const {
        const radixrt::Node &node = tree_.node(view.node);
        nb::list first_tokens;
        for (const std::int32_t token : node.key().first(std::min<std::size_t>(num_first_tokens, node.size))) {
            first_tokens.append(token);
        }
        nb::dict facts;
        facts["handle"] = tree_.handle(view.node);
        facts["parent"] = node.parent == root ? nb::none() : nb::cast(tree_.handle(node.parent));
        facts["namespace"] = namespaces_[tree_.node(root).space];
        facts["tokens"] = node.size;
        facts["subtree_tokens"] = view.subtree_tokens;
        facts["first_tokens"] = first_tokens;
        facts["locks"] = node.locks;
        facts["pins"] = node.pins;
        facts["hits"] = node.hits;
        facts["last_access"] = node.last_access;
        facts["children"] = view.num_children;
        return facts;
    }

    radixrt::RadixTree tree_;
    nb::dict ids_;                         // namespace -> its number
    std::vector<nb::object> namespaces_;   // by number
    std::vector<Space> unused_;
};

}  // namespace

void init_radix_tree(nb::module_ &m) {
    nb::register_exception_translator([](const std::exception_ptr &error, void *) {
        try {
            std::rethrow_exception(error);
        } catch (const radixrt::InvariantError &broken) {
            PyErr_SetString(PyExc_AssertionError, broken.what());
        }
    });
    types = new Types{
        Record(m, "radixrt_kernels._native.Match", std::array{"node", "slots"}),
        Record(m, "radixrt_kernels._native.Insertion", std::array{"node", "slots", "num_present"}),
        Record(m, "radixrt_kernels._native.TreeStats", std::array{"evictable", "locked", "num_nodes", "evicted", "pinned"}),
        nb::module_::import_("array").attr("array")("i", nb::make_tuple(0)),
    };
    // The GIL stays held: an operation is short, and the tree belongs to one thread anyway.
    nb::class_<BoundTree>(m, "RadixTree", "The compiled radix tree; radixrt.cache.radix_tree says what each method means.")
        .def("__init__",
             [](BoundTree *self, const std::string &policy, std::int64_t protected_threshold, std::int64_t attention_length) {
                 new (self) BoundTree(policy_of(policy, protected_threshold, attention_length));
             },
             "policy"_a = "lru", nb::kw_only(), "protected_threshold"_a = 2, "attention_length"_a = 16384)
        .def("match", &BoundTree::match, "tokens"_a, nb::kw_only(), "namespace"_a.none() = nb::none(), "start"_a.none() = nb::none())
        .def("match_length", &BoundTree::match_length, "tokens"_a, nb::kw_only(), "namespace"_a.none() = nb::none(),
             "start"_a.none() = nb::none())
        .def("insert", &BoundTree::insert, "tokens"_a, "slots"_a, nb::kw_only(), "namespace"_a.none() = nb::none(),
             "start"_a.none() = nb::none(), "priority"_a = 0)
        .def("lock", &BoundTree::lock, "node"_a)
        .def("unlock", &BoundTree::unlock, "node"_a)
        .def("pin", &BoundTree::pin, "node"_a)
        .def("unpin", &BoundTree::unpin, "node"_a)
        .def("evict", &BoundTree::evict, "num_slots"_a)
        .def("drop_tail", &BoundTree::drop_tail, "tokens"_a, nb::kw_only(), "namespace"_a.none() = nb::none(), "keep"_a)
        .def("clear", &BoundTree::clear)
        .def("stats", &BoundTree::stats)
        .def("watch", &BoundTree::watch, "key"_a, "tokens"_a, nb::kw_only(), "namespace"_a.none() = nb::none())
        .def("unwatch", &BoundTree::unwatch, "key"_a)
        .def("take_changed", &BoundTree::take_changed)
        .def("watched_path", &BoundTree::watched_path, "key"_a)
        .def("divergence", &BoundTree::divergence, "tokens"_a, nb::kw_only(), "namespace"_a.none() = nb::none(), "limit"_a = 8)
        .def("describe", &BoundTree::describe, "namespace"_a.none() = nb::none(), nb::kw_only(), "depth"_a = std::size_t{1} << 30,
             "min_tokens"_a = 0)
        .def("stored_slots", &BoundTree::stored_slots)
        .def("check_invariants", &BoundTree::check_invariants)
        .def("memory_bytes", &BoundTree::memory_bytes, "Bytes of nodes, edges, children and the queue of victims.")
        .def("num_namespaces", &BoundTree::num_namespaces, "Namespaces that something is stored in or watched, and None.");
}
