// The instruction set and the threads of the kernels.
#include <atomic>
#include <vector>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "radixrt/cpu.h"
#include "radixrt/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// How often each of a number of tasks ran, over some rounds: the pool's own test.
std::vector<int> count_tasks(int tasks, int rounds) {
    std::vector<std::atomic<int>> counts(tasks);
    {
        const nb::gil_scoped_release release;
        for (int round = 0; round < rounds; ++round)
            radixrt::thread_pool().run(tasks, [&](int task) { counts[task].fetch_add(1, std::memory_order_relaxed); });
    }
    return {counts.begin(), counts.end()};
}

}  // namespace

void init_cpu(nb::module_ &m) {
    m.def("cpu_isa", [] { return std::string(radixrt::isa_name(radixrt::cpu_isa())); }, "The instruction set in use.");
    m.def("detected_isa", [] { return std::string(radixrt::isa_name(radixrt::detected_isa())); }, "The widest instruction set there is.");
    m.def("isa_names", &radixrt::isa_names, "The instruction sets that there are kernels for, narrowest first.");
    m.def("set_cpu_isa", [](const std::string &name) { radixrt::set_cpu_isa(radixrt::isa_of(name)); }, "name"_a,
          "Use another instruction set; raises ValueError when the processor lacks it.");
    m.def("rejected_paths", &radixrt::rejected_paths, "Paths that differ from the portable one here, as 'op: set', and are not used.");
    m.def("num_threads", &radixrt::num_kernel_threads, "Threads of the kernels, the caller among them.");
    m.def("set_num_threads", &radixrt::set_num_kernel_threads, "count"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Use that many threads; not while a kernel runs.");
    m.def("_count_tasks", &count_tasks, "tasks"_a, "rounds"_a, "How often each task ran, for tests of the pool.");
}
