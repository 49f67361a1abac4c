// Threads that share the tasks of one kernel at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace radixrt {

// A fork-join pool.  The caller takes part; workers look for work for a short while before they sleep, because the kernels of a step
// follow each other within microseconds.  Which thread runs a task is left open, so results must not depend on it.
class ThreadPool {
public:
    static constexpr int kMaxTasks = (1 << 20) - 1;

    // num_threads counts the caller.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Call f(task) for every task in [0, tasks) and return when all are done; f must not throw.  Called from within a task, or while
    // another thread is in here, it runs all of them on the calling thread.
    template <class F>
    void run(int tasks, F &&f) {
        run_tasks(tasks, [](void *context, int task) { (*static_cast<std::remove_reference_t<F> *>(context))(task); },
                  const_cast<void *>(static_cast<const void *>(&f)));
    }

private:
    using Call = void (*)(void *, int);

    void run_tasks(int tasks, Call call, void *context);
    bool take(std::uint32_t generation);
    void work();

    // generation << 40 | tasks << 20 | next task.  A claim that succeeds is one of a task of the current job, whose call and context
    // stay as they are until that task is done; so a worker that comes late finds nothing to claim and touches nothing.
    std::atomic<std::uint64_t> ticket_{0};
    Call call_ = nullptr;
    void *context_ = nullptr;
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<std::uint32_t> wake_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
    std::mutex busy_;
    std::vector<std::thread> workers_;
};

// The pool of the process, made when first asked for, of num_kernel_threads() threads.
ThreadPool &thread_pool();
// Threads of the pool: by default RADIXRT_NUM_THREADS, or as many as the process may run on.
int num_kernel_threads();
// Replace the pool by one of another size (1 to 1024); not while a kernel runs.  Throws std::invalid_argument.
void set_num_kernel_threads(int num_threads);

}  // namespace radixrt
